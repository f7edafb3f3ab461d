"""What cannot start says why in one sentence, and never with a trace (PROTOCOL B1, 8)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.service import PROJECT, Service

Config = dict[str, Any]


def _sentence(said: str) -> str:
    """The one thing that a person is told."""
    assert "Traceback" not in said
    # Ours is the last word, and the only one about the failure.
    assert "Exiting." not in said
    lines = [line for line in said.splitlines() if line.startswith("earlybyte: ")]
    assert len(lines) == 1, said
    assert lines[0].endswith((".", "?")), lines[0]
    return lines[0]


def _profile(**fields: Any) -> Config:
    return {"profiles": {"default": fields}}


CASES: dict[str, tuple[Config, str]] = {
    "unknown group": ({"sever": {"port": 1}}, r"sever is not a setting; did you mean server\?"),
    "unknown key": ({"server": {"prot": 1}}, r"server\.prot is not a setting; did you mean port\?"),
    "unknown key of a profile": (_profile(provider="demo", tool=["x"]), r"profiles\.default\.tool is not a setting"),
    "wrong type": ({"server": {"port": "many"}}, r'server\.port = "many" is not allowed: it must be a valid integer'),
    "truth value": ({"limits": {"turns": True}}, r"limits\.turns = true is not allowed"),
    "out of range": ({"server": {"port": 70000}}, r"server\.port = 70000 is not allowed: it must be less than"),
    "zero": ({"limits": {"turns": 0}}, r"limits\.turns = 0 is not allowed"),
    "negative time": ({"timeouts": {"turn": -1}}, r"timeouts\.turn = -1 is not allowed"),
    "broken ladder": (
        {"timeouts": {"turn": 20}},
        r"timeouts\.tool = 30 must be shorter than timeouts\.turn = 20: every timeout is shorter than the one around it",
    ),
    "reserve over turn": (
        {"timeouts": {"turn": 40, "reserve": 40}},
        r"timeouts\.reserve = 40 must be shorter than timeouts\.turn = 40",
    ),
    "any origin": ({"server": {"cors_origins": ["*"]}}, r"server\.cors_origins = .*'\*' cannot be allowed"),
    "an origin with a path": ({"server": {"cors_origins": ["https://a.example/"]}}, r"an origin is written as"),
    "a proxy that is none": ({"server": {"trusted_proxies": ["proxy"]}}, r"a proxy is an IP address or a network"),
    "unknown provider": (_profile(provider="openia"), r'profiles\.default\.provider = "openia" is not allowed: it must be'),
    "no model": (_profile(provider="openai"), r'\[profiles\.default\] is not allowed: provider = "openai" needs model'),
    "no key for the provider's own endpoint": (
        _profile(provider="openai", model="m"),
        r"The environment variable OPENAI_API_KEY is not set; profiles\.default",
    ),
    "no default profile": ({"profiles": {"other": {"provider": "demo"}}}, r"no profile named default, only other"),
    "unknown tool module": (_profile(provider="demo", tools=["no.such.tools"]), r"no\.such\.tools"),
    "a module without tools": (_profile(provider="demo", tools=["json"]), r"json"),
    "unknown tool of a module": (_profile(provider="demo", tools=["tests.tools_for_tests:nothing"]), r"nothing"),
    "a tool module that breaks": (_profile(provider="demo", tools=["broken_module"]), r"broken_module"),
    "unknown agent module": (_profile(provider="agent", agent="no.such:agent"), r"no\.such"),
    "unknown agent": (_profile(provider="agent", agent="tests.tools_for_tests:nobody"), r"nobody"),
    "an agent without a name": (_profile(provider="agent", agent="module"), r"it must be package\.module:name"),
    "no agent": (_profile(provider="agent"), r'provider = "agent" needs agent'),
    "unknown hook module": ({"hooks": {"modules": ["no.such.hooks"]}}, r"no\.such\.hooks"),
    "unknown store": ({"store": {"url": "mysql://x"}}, r"store\.url = \"mysql://x\" is not allowed"),
    "a store in no folder": ({"store": {"url": "sqlite+aiosqlite:////nowhere/at/all/x.db"}}, r"/nowhere/at/all"),
    "a database that is not there": (
        {"store": {"url": "postgresql+asyncpg://me:geheim@127.0.0.1:1/x"}},
        r"127\.0\.0\.1:1|127\.0\.0\.1",
    ),
    "another turn log": ({"turn_log": {"url": "kafka://x"}}, r"turn_log\.url = kafka://x is unknown"),
    "workers without a shared log": (
        {"server": {"workers": 2}},
        r"server\.workers = 2 needs a turn log that processes share",
    ),
    "a host that is none": ({"server": {"host": "no.such.host.invalid"}}, r"no\.such\.host\.invalid"),
}


def _start(name: str) -> tuple[int, str]:
    with Service(config=CASES[name][0], start=False) as service:
        (service.folder / "broken_module.py").write_text("import not_there_at_all\n")
        return service.refuses_to_start(40)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[int, str]]:
    """How each case ended: exit code and all that was said; a few at a time, since each is a whole process."""
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(CASES, pool.map(_start, CASES), strict=True))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CASES)
def test_a_configuration_that_cannot_be_used_is_refused_in_one_sentence(
    name: str, outcomes: dict[str, tuple[int, str]]
) -> None:
    """It names the setting, what is wrong and what is allowed; the exit code is 2 and nothing listens (section 8, B1)."""
    code, said = outcomes[name]
    sentence = _sentence(said)
    assert re.search(CASES[name][1], sentence), sentence
    assert code == 2, said
    assert "geheim" not in said


def test_a_tool_that_outlives_its_turn_is_named() -> None:
    """A tool's own timeout must fit into `turn − reserve` (B1)."""
    with Service(config=_profile(provider="demo", tools=["long_tools"]), start=False) as service:
        (service.folder / "long_tools.py").write_text(
            "from app.tools import tool\n\n@tool(timeout=115)\ndef wait_long() -> str:\n    '''Wait.'''\n    return ''\n"
        )
        code, said = service.refuses_to_start()
    assert code == 2
    assert "The tool wait_long has timeout = 115" in _sentence(said)


def test_a_port_in_use_is_told() -> None:
    """Another program has it: one sentence with the port (section 8)."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Service(config={"server": {"port": port}}, start=False) as service:
            code, said = service.refuses_to_start()
    assert code == 2
    assert f"Port {port} of 127.0.0.1 is in use" in _sentence(said)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not really toml", "is not valid TOML"),
        (b"\xff\xfe\x00", "is not valid TOML"),
        (b"server = 5\n", "server = 5 is not allowed: it must be a table"),
        (b"[server]\nport = 1\nport = 2\n", "is not valid TOML"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_is_no_configuration_is_told(tmp_path: Path, content: bytes | None, expected: str) -> None:
    """With the name of the file (section 8)."""
    file = tmp_path / "bad.toml"
    if content is not None:
        file.write_bytes(content)
    code, said = _check(tmp_path, "--config", str(file))
    assert code == 2
    assert expected in _sentence(said)
    assert "bad.toml" in _sentence(said)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("EARLYBYTE_SERVER__PROT", "1", "EARLYBYTE_SERVER__PROT is not a setting; did you mean EARLYBYTE_SERVER__PORT?"),
        ("EARLYBYTE_SERVER__PORT", "many", 'EARLYBYTE_SERVER__PORT: server.port = "many" is not allowed'),
        ("EARLYBYTE_NOTHING", "1", "EARLYBYTE_NOTHING is not a setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_told(tmp_path: Path, variable: str, value: str, expected: str) -> None:
    """By its own name, so that a typing error in a deployment is found (section 8)."""
    code, said = _check(tmp_path, **{variable: value})
    assert code == 2
    assert expected in _sentence(said)


def _check(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EARLYBYTE_")}
    done = subprocess.run(
        [sys.executable, "-m", "app", "check", *arguments],
        env=inherited | {"PYTHONPATH": str(PROJECT)} | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr
