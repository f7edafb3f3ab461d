"""`migrate` and `check`: what an operator runs before `serve`."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from app.cli.proxies.finding import Finding
from app.cli.proxies.manifests import check_compose, check_kubernetes
from app.cli.proxies.nginx import check_nginx
from app.config import Settings
from app.config_sources import without_password
from app.limits import budget
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


def check(settings: Settings, files: Sequence[tuple[str, str]] = ()) -> int:
    """Print the time ladder and a line for each thing that `serve` needs; returns the exit code, 1 when a file is wrong.

    `files` are `(kind, path)` of what stands around the service: `nginx`, `kubernetes` or `compose`. The settings have been
    read and the ladder checked before this is called.

    Raises:
        EarlybyteError: the first thing that is not as it must be.
    """
    from app.bootstrap import preflight

    print("ok    configuration")
    _print_ladder(settings)
    for name, assistant in preflight(settings).items():
        found = f"tools {', '.join(assistant.tools)}" if assistant.tools else "no tools"
        print(f"ok    profile {name}: {assistant.profile.provider}, {found}")
    anyio.run(_open_and_close, settings.store.url)
    print(f"ok    store {without_password(settings.store.url)}")
    findings = [finding for kind, path in files for finding in _read(kind, path, settings)]
    for finding in findings:
        print(finding)
    broken = sum(finding.verdict == "WRONG" for finding in findings)
    if broken:
        print(f"{broken} of {len(findings)} findings are wrong.")
    return 1 if broken else 0


def _print_ladder(settings: Settings) -> None:
    print("ok    time ladder (seconds): every timeout is shorter than the one around it")
    show = budget.show
    for inner, inside, outer, outside, margin in budget.margins(settings.timeouts):
        print(f"        {inner:<22}{show(inside):>6}  <  {outer:<18}{show(outside):>6}   margin {show(margin)}")


def _read(kind: str, path: str, settings: Settings) -> list[Finding]:
    match kind:
        case "nginx":
            return check_nginx(path, settings.timeouts, settings.limits)
        case "kubernetes":
            return check_kubernetes(path, settings)
        case _:
            return check_compose(path, settings)


async def _open_and_close(url: str) -> None:
    store = await Store.open(url)
    await store.close()
