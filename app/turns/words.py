"""The words of apology, one for each `error.code` (PROTOCOL 3). `[texts]` in the configuration overrides any.

Retryable ones ask to try again; `upstream_interrupted` says that work was done; none names a component of the service, and
none is ever an exception's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from app.events.types import ErrorCode

APOLOGIES: dict[ErrorCode, str] = {
    "upstream_unavailable": "Sorry, I could not get an answer just now. Please try again.",
    "upstream_rejected": "Sorry, I cannot answer this request. If it keeps happening, please tell the people who run me.",
    "upstream_invalid": "Sorry, I got into a muddle and could not answer. Please try again.",
    "upstream_interrupted": (
        "Sorry, I was interrupted after part of the work had been done. Please check what was done before you ask again."
    ),
    "empty_answer": "Sorry, I could not find anything to say to that. Please try again.",
    "content_filter": "Sorry, I am not able to answer that. Could you put it in another way?",
    "turn_timeout": "Sorry, that took too long. Please try again.",
    "denied": "Sorry, I am not allowed to do that.",
    "recovered": "Sorry, I was interrupted before I could answer. Please try again.",
    "limit_exceeded": "Sorry, that became too long to finish. A smaller request may work.",
    "internal": "Sorry, something went wrong on our side. We have made a note of it.",
}
# The same codes once a tool has begun: asking to try again would risk doing the work twice.
_AFTER_WORK = "Sorry, I could not finish. Part of the work may have been done, so please check before you ask again."

assert set(APOLOGIES) == set(get_args(ErrorCode)), "every error code needs its words"


def apology(code: ErrorCode, *, retryable: bool, texts: Mapping[str, str]) -> str:
    """The sentence for `code`; without the invitation to try again where that is not safe."""
    if code in texts:
        return texts[code]
    sentence = APOLOGIES[code]
    if not retryable and "Please try again." in sentence:
        return _AFTER_WORK
    return sentence
