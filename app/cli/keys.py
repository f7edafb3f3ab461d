"""`key create`, `key list`, `key revoke`: who may come in (A1). A key is shown once; the store has only its hash."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import anyio

from app.clock import now_ms
from app.config import Settings
from app.errors import ConfigError
from app.ids import new_id, new_secret
from app.store.engine import Store
from app.store.keys import ApiKey, insert_key, list_keys, revoke_key

T = TypeVar("T")


def keys(settings: Settings, arguments: argparse.Namespace) -> int:
    """Do what `arguments.action` says; returns the exit code.

    Raises:
        EarlybyteError: the store cannot be opened or does not take the change.
    """
    match arguments.action:
        case "create":
            return _create(settings, user=arguments.user, role=arguments.role, tenant=arguments.tenant)
        case "list":
            return _list(settings)
        case _:
            return _revoke(settings, arguments.id)


def _create(settings: Settings, *, user: str, role: str, tenant: str) -> int:
    if not user.strip():
        raise ConfigError("--user is empty; name whose key it is.")
    key = new_secret("eb")
    row = ApiKey(
        id=new_id("key"),
        key_hash=hashlib.sha256(key.encode()).hexdigest(),
        user_id=user,
        tenant=tenant,
        role="admin" if role == "admin" else "user",
        created_at=now_ms(),
    )
    _with_store(settings, lambda store: store.write(lambda conn: insert_key(conn, row)))
    # Alone on standard output, so that a script can take it from there.
    print(key)
    print(
        f"{row.id}: the key of {user} ({role}). It is not shown again. A service that was started without any key "
        "asks for keys after a restart.",
        file=sys.stderr,
    )
    return 0


def _list(settings: Settings) -> int:
    rows = _with_store(settings, lambda store: store.read(list_keys))
    for row in rows:
        state = f"revoked {_moment(row.revoked_at)}" if row.revoked_at else "good"
        tenant = f" of {row.tenant}" if row.tenant else ""
        print(f"{row.id}  {row.role:<5}  {_moment(row.created_at)}  {state}  {row.user_id}{tenant}")
    if not rows:
        print("There are no keys; earlybyte key create --user NAME makes one.", file=sys.stderr)
    return 0


def _revoke(settings: Settings, key_id: str) -> int:
    if _with_store(settings, lambda store: store.write(lambda conn: revoke_key(conn, key_id, at=now_ms()))):
        print(f"{key_id} is revoked.", file=sys.stderr)
        return 0
    print(f"earlybyte: there is no good key with the id {key_id}; earlybyte key list shows them all.", file=sys.stderr)
    return 1


def _with_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = await Store.open(settings.store.url)
        try:
            return await work(store)
        finally:
            await store.close()

    return anyio.run(run)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
