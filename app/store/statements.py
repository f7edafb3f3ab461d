"""The few statements that the two databases spell differently, and how the busy ones are kept.

Building a statement costs more than running it on SQLite: 60 to 150 µs, the search for its compiled form included.
What runs for every turn is therefore built once, with `bindparam`s in place of the values.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


def insert_into(conn: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can be told what to do when the row is there already (`on_conflict_do_…`)."""
    return postgresql.insert(table) if conn.dialect.name == "postgresql" else sqlite.insert(table)


def insert_new(conn: AsyncConnection, table: Table, *key: str) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of whole rows that leaves a row as it is whose `key` is there already; give it the values as parameters."""
    return _insert_new(conn.dialect.name, table, key)


@cache
def _insert_new(dialect: str, table: Table, key: tuple[str, ...]) -> postgresql.Insert | sqlite.Insert:
    insert = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    values = {column.name: bindparam(column.name, type_=column.type) for column in table.columns}
    return insert.values(values).on_conflict_do_nothing(index_elements=key)
