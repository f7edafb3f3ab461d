"""How Alembic meets the database: on a connection that is given to it, or, from its own command line, on one it opens.

`app.store.schema` gives a connection with an open transaction and commits it. For the command line, name the database:
`alembic -x url=sqlite+aiosqlite:///earlybyte.db revision --autogenerate -m "…"`.
"""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy.engine import Connection

from app.store.connect import opening_engine, parse
from app.store.tables import metadata


def run(connection: Connection) -> None:
    """Apply what was asked for on `connection`."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        # SQLite can alter little; Alembic then rebuilds the table.
        render_as_batch=True,
        compare_server_default=False,
        # The whole upgrade is one transaction on both databases.
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_from_the_command_line() -> None:
    """Open the database named by `-x url=…`, else by alembic.ini."""
    url = context.get_x_argument(as_dictionary=True).get("url") or context.config.get_main_option("sqlalchemy.url")
    if not url:
        raise SystemExit("name the database: alembic -x url=sqlite+aiosqlite:///earlybyte.db …")
    engine = opening_engine(parse(url))
    try:
        async with engine.begin() as conn:
            await conn.run_sync(run)
    finally:
        await engine.dispose()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
elif context.is_offline_mode():
    raise SystemExit("offline mode is not supported: the revisions look at the database")
else:
    asyncio.run(run_from_the_command_line())
