"""`migrate` and `check`: what an operator runs before `serve`."""

from __future__ import annotations

import anyio

from app.config import Settings
from app.config_sources import without_password
from app.store.engine import Store
from app.store.schema import migrate as migrate_store


def migrate(settings: Settings) -> int:
    """Bring the store to the schema of this version; returns the exit code.

    Raises:
        ConfigError: the store cannot be opened, or a newer version made it.
    """
    revision = anyio.run(migrate_store, settings.store.url)
    print(f"{without_password(settings.store.url)} has the schema {revision}.")
    return 0


def check(settings: Settings) -> int:
    """Print one `ok` line for each thing that `serve` needs; returns the exit code.

    The settings have been read and the ladder checked before this is called.

    Raises:
        EarlybyteError: the first thing that is not as it must be.
    """
    from app.bootstrap import preflight

    print("ok  configuration")
    print("ok  time ladder")
    preflight(settings)
    for name, profile in settings.profiles.items():
        what = f"{len(profile.tools)} tool modules" if len(profile.tools) != 1 else "1 tool module"
        print(f"ok  profile {name}: {profile.provider}, {what}")
    anyio.run(_open_and_close, settings.store.url)
    print(f"ok  store {without_password(settings.store.url)}")
    return 0


async def _open_and_close(url: str) -> None:
    store = await Store.open(url)
    await store.close()
