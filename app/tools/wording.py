"""What a tool returned or raised, in words that can be shown: to the model whole, to a person as a preview.

Exceptions carry what must not leave the service: paths, files, stacks, keys in addresses. They are cut down here, once.
"""

from __future__ import annotations

import json
import re

from app.tools.errors import ToolError

PREVIEW_BYTES = 2048
_ERROR_CHARS = 300

_SURROGATES = re.compile("[\ud800-\udfff]")
_SECRETS = re.compile(
    r"(?<=://)[^\s/@]+@"  # user and password in an address
    r"|(?i:\b(?:bearer|basic)\s+)\S+"
    r"|\b(?:sk|pk|key|ghp|xox[abp])[-_][A-Za-z0-9_-]{8,}"
    r"|(?i:\b(?:api[-_]?key|token|secret|password|passwd)\s*[=:]\s*)\S+"
)
_PATHS = re.compile(
    r"""(?<![\w:/.])~?/(?:[^\s/'"<>:,;()]+/)*[^\s/'"<>:,;()]+"""  # /a/b, but not the path of an address
    r"""|\b[A-Za-z]:\\[^\s'"<>:,;()]+"""
    r"""|\b[\w.-]+\.py\b"""
)


def clean(text: str) -> str:
    """`text` as it can be encoded: each lone surrogate has become U+FFFD (PROTOCOL F4)."""
    if text.isascii():
        return text
    # A pair of surrogates is one character written in two halves; only what is left after joining them is broken.
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _SURROGATES.sub("\ufffd", joined)


def cut(text: str, max_bytes: int = PREVIEW_BYTES) -> tuple[str, bool]:
    """The beginning of `text`, at most `max_bytes` of UTF-8 and whole characters; and whether something is missing."""
    if len(text) * 4 <= max_bytes:
        return text, False
    encoded = text[: max_bytes + 1].encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return text, False
    return encoded[:max_bytes].decode("utf-8", "ignore"), True


def encode_result(value: object) -> str:
    """What the model is told of a returned value: a string as it is, anything else as compact JSON.

    Raises:
        ToolError: the value is neither a string nor JSON (NaN and infinity are not).
    """
    if isinstance(value, str):
        return clean(value)
    try:
        return clean(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except RecursionError:
        raise ToolError("The tool returned something that is nested too deeply.") from None
    except Exception:  # a foreign value may raise anything while it is walked
        raise ToolError(f"The tool returned something that is neither a string nor JSON ({_kind(value)}).") from None


def error_words(error: BaseException) -> str:
    """One short sentence about `error`: `ValueError: amount is negative`.

    A `ToolError` speaks for itself. Of any other exception: its name and the first line of its text, at most 300
    characters, with absolute paths, file names and what looks like a key masked.
    """
    if isinstance(error, ToolError):
        return clean(error.message)
    name = type(error).__name__
    try:
        text = str(error).strip()
    except Exception:  # `__str__` is foreign code too
        text = ""
    first = text.splitlines()[0].strip() if text else ""
    if not first:
        return name
    masked = _PATHS.sub("…", _SECRETS.sub("…", clean(first)))
    return f"{name}: {masked if len(masked) <= _ERROR_CHARS else masked[: _ERROR_CHARS - 1] + '…'}"


def where_raised(error: BaseException) -> str:
    """For the log: the innermost place of the traceback, `invoices.py:42 in create`; without any text of the error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return "unknown"
    code = place.tb_frame.f_code
    return f"{code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{place.tb_lineno} in {code.co_name}"


def _kind(value: object) -> str:
    return type(value).__name__
