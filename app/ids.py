"""Identifiers: short, unique, sortable by creation to the millisecond, and safe in a URL, a header and an SSE id.

An id is `<prefix>_<time><random>` in base 32 (digits and lower-case letters without i, l, o, u), so it holds no `-`; that
is what lets a cursor `<turn_id>-<epoch>-<seq>` be split from the right (PROTOCOL F3).
"""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """A fresh id such as `turn_01hzx3…`: 48 bits of milliseconds and 80 random bits."""
    number = (int(time.time() * 1000) & ((1 << 48) - 1)) << 80 | secrets.randbits(80)
    digits = [_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5)]
    return f"{prefix}_{''.join(digits)}"


def new_secret(prefix: str) -> str:
    """A secret of 256 random bits, with a prefix that lets scanners recognise it."""
    return f"{prefix}_{secrets.token_hex(32)}"
