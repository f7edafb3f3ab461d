"""The few statements that the two databases spell differently."""

from __future__ import annotations

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


def insert_into(conn: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can be told what to do when the row is there already (`on_conflict_do_…`)."""
    return postgresql.insert(table) if conn.dialect.name == "postgresql" else sqlite.insert(table)
