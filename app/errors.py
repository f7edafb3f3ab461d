"""The one root of our own errors.

Each class has a stable `code` and its docstring as default message. Only `app/api/problems.py` knows which HTTP status a
class becomes; only `app/turns/outcome.py` knows which ending of a turn it becomes.
"""

from __future__ import annotations

import inspect


class EarlybyteError(Exception):
    """Something went wrong in Earlybyte."""

    code = "internal"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or type(self).__name__).split("\n")[0])

    @property
    def message(self) -> str:
        """One clear sentence that names the thing."""
        return str(self.args[0])


class ConfigError(EarlybyteError):
    """The configuration cannot be used."""

    code = "invalid_configuration"


class StoreUnavailable(EarlybyteError):
    """The store does not answer at the moment."""

    code = "store_unavailable"
