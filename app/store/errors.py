"""What a failed statement means. The only place that looks at errors of SQLAlchemy and of the drivers.

Our messages hold neither SQL nor parameters; the driver's own words may, so they go no further than `reason`, which
keeps the class and the SQLSTATE.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, ProgrammingError, SQLAlchemyError

from app.errors import EarlybyteError, StoreUnavailable

# 40: deadlock and serialization failure; 55P03: lock timeout; 57014: statement timeout. The statement failed, the
# connection and the savepoint before it are sound.
_ONE_STATEMENT = ("40001", "40P01", "55P03", "57014")


class Conflict(EarlybyteError):
    """The row is there already, or what it belongs to is not there."""

    code = "store_conflict"


class Fenced(EarlybyteError):
    """Another process has taken the turn over."""

    code = "turn_fenced"


class Refused(EarlybyteError):
    """The store refused a value or a statement."""

    code = "internal"


def translate(error: Exception) -> Exception:
    """Our error for `error`: a fresh one for the store's failures, `error` itself for everything that is not theirs."""
    if not is_foreign(error):
        return error
    state = sqlstate(error)
    if isinstance(error, IntegrityError) or state.startswith("23"):
        return Conflict()
    if isinstance(error, (DataError, ProgrammingError)) or state[:2] in ("22", "42") or _bad_argument(error):
        return Refused()
    if isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError):
        return Refused()
    return StoreUnavailable()


def is_foreign(error: Exception) -> bool:
    """Whether `error` comes from below: SQLAlchemy, a driver, or a connection that could not be made or was lost."""
    return isinstance(error, (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError))


def spares_the_batch(error: Exception) -> bool:
    """Whether other operations of the same transaction can go on after `error` (rolled back to a savepoint)."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return False
    return not isinstance(translate(error), StoreUnavailable) or not is_foreign(error) or sqlstate(error) in _ONE_STATEMENT


def reason(error: BaseException) -> str:
    """A few words for the log: the class of the driver's error, with its SQLSTATE or SQLite code. Never a value."""
    original = getattr(error, "orig", None) or error
    code = sqlstate(error) or getattr(original, "sqlite_errorname", "")
    name = type(getattr(original, "driver_exception", None) or original).__name__
    return f"{name} {code}".strip()


def sqlstate(error: BaseException) -> str:
    """The five characters of PostgreSQL's SQLSTATE, or nothing."""
    original = getattr(error, "orig", None) or error
    return str(getattr(original, "sqlstate", None) or "")


def _bad_argument(error: Exception) -> bool:
    """Whether the driver refused an argument before it sent anything (asyncpg: a ValueError among interface errors)."""
    cause = getattr(getattr(error, "orig", None), "driver_exception", None)
    return isinstance(error, InterfaceError) and isinstance(cause, ValueError)
