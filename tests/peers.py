"""Programs of others that speak the same protocols: npm packages, fetched once into the user's cache and run by node."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.needs import require
from tests.nginx import free_port
from tests.service import wait_until

PACKAGES = {"@copilotkit/aimock": "1.43.0", "eventsource": "4.0.0"}


def node() -> str:
    """node, or the end of the test."""
    return require("node 20", shutil.which("node") if shutil.which("npm") else None, "apt install nodejs npm")


def packages() -> Path:
    """The folder with `node_modules`; filled by the first process that comes, while others wait."""
    node()
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "earlybyte-tests"
    folder = root / "-".join(sorted(f"{name.rpartition('/')[2]}{version}" for name, version in PACKAGES.items()))
    ready = folder / "ready"
    if not ready.exists():
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=root))
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        line = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--ignore-scripts",
            "--prefix",
            str(made),
            *wanted,
        ]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
        require(
            f"the npm packages {', '.join(wanted)}", done.returncode == 0, f"npm reaches no registry: {done.stderr[-300:]}"
        )
        (made / "ready").touch()
        with contextlib.suppress(OSError):
            # Another process may have been first; its folder is as good.
            made.rename(folder)
        shutil.rmtree(made, ignore_errors=True)
    return folder


@contextlib.contextmanager
def aimock(fixtures: list[dict[str, Any]]) -> Iterator[str]:
    """The URL of an aimock that answers by these fixtures, as OpenAI and as Anthropic."""
    program = packages() / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    folder = Path(tempfile.mkdtemp(prefix="eb-aimock-"))
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": fixtures}))
    port = free_port()
    command = [node(), str(program), "-p", str(port), "-h", "127.0.0.1", "-f", str(folder / "fixtures.json")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port, process, folder), 20, "the start of aimock")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int, process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "log").read_text()
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


_FOLLOW = """
import { EventSource } from "eventsource";
const [url, limit] = [process.argv[2], Number(process.argv[3])];
const source = new EventSource(url);
const say = (what) => process.stdout.write(JSON.stringify(what) + "\\n");
source.onopen = () => say({ opened: true });
source.onmessage = (message) => {
  const event = JSON.parse(message.data);
  say({ id: message.lastEventId, event });
};
source.onerror = (error) => {
  say({ error: error.code ?? null, state: source.readyState });
  if (source.readyState === EventSource.CLOSED) process.exit(0);
};
setTimeout(() => process.exit(3), limit);
"""


def follow_with_eventsource(url: str, *, seconds: float = 20.0) -> list[dict[str, Any]]:
    """What npm's `eventsource` told of a stream until the service closed it for good; it is left to itself."""
    folder = packages()
    script = folder / f"follow-{os.getpid()}-{time.monotonic_ns()}.mjs"
    script.write_text(_FOLLOW)
    try:
        command = [node(), str(script), url, str(int(seconds * 1000))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 10, check=False)
    finally:
        script.unlink()
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-500:])
    return [json.loads(line) for line in done.stdout.splitlines()]
