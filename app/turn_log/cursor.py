"""Cursors: what a viewer says it has seen (R1–R3). Pure."""

from __future__ import annotations

import re

_FORM = re.compile(r"([0-9A-Za-z_]{1,48})-([0-9]{1,9})-([0-9]{1,9})")


def seq_of(cursor: str, *, turn_id: str, epoch: int) -> int | None:
    """The seq that `cursor` names in this turn and epoch; None for everything else, garbage included (R3)."""
    match = _FORM.fullmatch(cursor)
    if match is None or match[1] != turn_id or int(match[2]) != epoch:
        return None
    return int(match[3])


def names_turn(cursor: str, turn_id: str) -> bool:
    """Whether `cursor` has the form of an id of this turn, of whatever epoch."""
    match = _FORM.fullmatch(cursor)
    return match is not None and match[1] == turn_id
