"""JSON as models write it: escapes may be halves of a character, cut by the provider between two deltas.

msgspec is quick and strict: it refuses a lone surrogate escape. The standard library's parser lets it through, so it is
the second try. Halves of one character that met again are joined by `mend`; a half that stays alone becomes U+FFFD
(F4).
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec

SURROGATE = re.compile("[\\ud800-\\udfff]")
_PAIR = re.compile("[\\ud800-\\udbff][\\udc00-\\udfff]")


def mend(text: str) -> str:
    """`text` with surrogate pairs joined and lone halves as U+FFFD; it can be encoded as UTF-8."""
    if text.isascii() or SURROGATE.search(text) is None:
        return text
    return SURROGATE.sub("\ufffd", _PAIR.sub(_join, text))


def mend_all(value: Any) -> Any:
    """A copy of a JSON value with every string, keys too, mended."""
    match value:
        case str():
            return mend(value)
        case list():
            return [mend_all(item) for item in value]
        case dict():
            return {mend(key): mend_all(item) for key, item in value.items()}
        case _:
            return value


def decode_json(text: str) -> Any:
    """The value of a JSON text; strings may hold lone surrogates.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def encode_json(value: Any) -> bytes:
    """Compact JSON; lone surrogates become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(mend_all(value))


def _join(pair: re.Match[str]) -> str:
    high, low = map(ord, pair.group())
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
