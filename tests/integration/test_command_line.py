"""The program as a person or a supervisor meets it: real processes, real sockets, a real terminal (PROTOCOL 8)."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AGENTS = '''
import threading
from app.tools import tool

def talk(ctx):
    text = str(ctx.input)
    yield "You said: "
    if "endless" in text:
        stop = threading.Event()
        ctx.on_cancel(stop.set)
        yield "on and on"
        stop.wait(30)
        return
    if "book" in text:
        yield None
        ctx.call_tool("book", {"amount": 3})
    if "nothing" in text:
        raise RuntimeError("hunter2")
    yield text

def silent(ctx):
    raise RuntimeError("hunter2")
    yield

@tool(title="Booking the amount", side_effects="unsafe", approval=True)
def book(ctx, amount: float) -> str:
    """Book it."""
    return "booked"
'''


class Program:
    """The command line in a folder of its own, with an agent and a tool of the user's beside its configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "my_agents.py").write_text(AGENTS, encoding="utf-8")
        (folder / "earlybyte.toml").write_text(
            f"[server]\nport = {self.port}\n"
            '[profiles.default]\nprovider = "agent"\nagent = "my_agents:talk"\ntools = ["my_agents:book"]\n'
            '[profiles.silent]\nprovider = "agent"\nagent = "my_agents:silent"\n',
            encoding="utf-8",
        )
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("EARLYBYTE_")}
        self.environ["PYTHONPATH"] = str(ROOT)
        self.running: list[subprocess.Popen[str]] = []

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "app", *arguments]

    def run(self, *arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments), cwd=self.folder, env={**self.environ, **environ}, input=stdin,
            capture_output=True, text=True, timeout=40, check=False,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*arguments), cwd=self.folder, env=self.environ, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.running.append(process)
        return process

    def serve(self) -> subprocess.Popen[str]:
        """A running service; returns when it says that it listens."""
        process = self.start("serve")
        line = read_until(process.stderr, "serves")
        assert f"Earlybyte serves http://127.0.0.1:{self.port} (profile default: agent)" in line
        return process

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def read_until(stream: object, words: str, seconds: float = 30) -> str:
    """What the stream says up to and with `words`."""
    fd = stream if isinstance(stream, int) else stream.fileno()  # type: ignore[attr-defined]
    seen, deadline = b"", time.monotonic() + seconds
    while words.encode() not in seen:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{words!r} did not come in time; seen: {seen.decode()}"
        piece = os.read(fd, 65536)
        assert piece, f"ended without {words!r}: {seen.decode()}"
        seen += piece
    return seen.decode()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("command", [["--help"], ["serve", "--help"], ["chat", "--help"], ["migrate", "--help"],
                                     ["check", "--help"], ["key", "--help"], ["key", "create", "--help"]])  # fmt: skip
def test_help_is_everywhere(program: Program, command: list[str]) -> None:
    """Section 8: `--help` everywhere, on standard output, with success."""
    done = program.run(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: earlybyte" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["dance"], {}, "dance"),
        (["chat"], {}, "text"),
        (["chat", " "], {}, "text is empty"),
        (["chat", "hi", "--url", "ftp://x"], {}, "ftp://x"),
        (["serve", "--config", "none.toml"], {}, "none.toml does not exist"),
        (["--config", "none.toml", "serve"], {}, "none.toml does not exist"),
        (["serve"], {"EARLYBYTE_TIMEOUTS__TOOL": "121"}, "timeouts.tool = 121 must be shorter than timeouts.turn = 120"),
        (["check"], {"EARLYBYTE_TIMEOUTS__TOL": "1"}, "did you mean EARLYBYTE_TIMEOUTS__TOOL?"),
        (["serve"], {"EARLYBYTE_PROFILES__DEFAULT__TOOLS": "no_such_module"}, "no_such_module"),
        (["serve"], {"EARLYBYTE_SERVER__HOST": "0.0.0.0"}, "earlybyte key create"),
        (["serve"], {"EARLYBYTE_STORE__URL": "sqlite+aiosqlite:////no/such/folder/x.db"}, "/no/such/folder/x.db"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_sentence_with_exit_code_2(
    program: Program, arguments: list[str], environ: dict[str, str], words: str
) -> None:
    """B1, A1 and section 8: no trace, no silence; also for what only the start of the service finds out."""
    done = program.run(*arguments, **environ)
    assert done.returncode == 2
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("earlybyte: ")
    assert words in sentence
    assert "Traceback" not in done.stdout


def test_a_key_stands_alone_on_standard_output_and_only_its_hash_is_stored(program: Program) -> None:
    """A1: printed once; `key list` shows who has one, and a revoked one as revoked."""
    made = program.run("key", "create", "--user", "ann", "--role", "admin")
    assert re.fullmatch(r"eb_[0-9a-f]{64}\n", made.stdout)
    key = made.stdout.strip()
    assert key not in made.stderr
    assert key.encode() not in b"".join(file.read_bytes() for file in program.folder.glob("earlybyte.db*"))
    [row] = program.run("key", "list").stdout.splitlines()
    assert "ann" in row
    assert "admin" in row
    assert program.run("key", "revoke", row.split()[0]).returncode == 0
    assert "revoked" in program.run("key", "list").stdout
    assert program.run("key", "revoke", row.split()[0]).returncode == 1


def test_check_says_ok_for_each_thing_that_serve_needs(program: Program) -> None:
    """An operator sees what was looked at, and under the ladder each of its rules with both values."""
    done = program.run("check")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    rules = [line.split() for line in lines if line.startswith("        ")]
    said = [line for line in lines if not line.startswith("        ")]
    assert [line.split()[:3] for line in said] == [
        ["ok", "configuration"],
        ["ok", "time", "ladder"],
        ["ok", "profile", "default:"],
        ["ok", "profile", "silent:"],
        ["ok", "store", "sqlite+aiosqlite:///earlybyte.db"],
    ]
    assert ["tool", "30", "<", "turn", "120", "margin", "90"] in rules
    assert len(rules) == 13


def test_migrate_names_the_schema_and_can_be_repeated(program: Program) -> None:
    """Safe to run at every deployment."""
    first, second = program.run("migrate"), program.run("migrate")
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == second.stdout != ""


def test_a_taken_port_is_refused_in_one_sentence(program: Program) -> None:
    """The second service does not start beside the first."""
    program.serve()
    done = program.run("serve")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"earlybyte: Port {program.port} of 127.0.0.1 is in use")


def test_a_stopped_service_drains_and_ends_with_success_and_json_lines(program: Program) -> None:
    """SIGTERM is an order, not a failure; standard output is one JSON object a line."""
    service = program.serve()
    urllib.request.urlopen(f"http://127.0.0.1:{program.port}/readyz?ticket=hunter2", timeout=5).close()
    service.send_signal(signal.SIGTERM)
    out, err = service.communicate(timeout=30)
    assert service.returncode == 0
    assert "Traceback" not in err
    paths = {json.loads(line).get("path") for line in out.splitlines()}
    assert "/readyz" in paths
    assert "hunter2" not in out


def test_chat_serves_within_its_own_process_when_nothing_listens(program: Program) -> None:
    """Section 8: one command is enough; the answer alone is on standard output."""
    done = program.run("chat", "hello")
    assert (done.returncode, done.stdout) == (0, "You said: hello\n")
    assert "serving within this process" in done.stderr
    assert done.stderr.splitlines()[-1] == "— complete"


def test_chat_is_a_client_of_the_service_that_listens(program: Program) -> None:
    """Section 8: the text may come from standard input."""
    program.serve()
    done = program.run("chat", "-", stdin="from a pipe")
    assert (done.returncode, done.stdout) == (0, "You said: from a pipe\n")
    assert "within this process" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing"], 3, "— interrupted: the model's answer broke off"),
        (["x", "--profile", "silent"], 4, "—"),
        (["x", "--conversation", "conv_none"], 5, "refused (404)"),
        (["x", "--url", "http://127.0.0.1:1"], 5, "does not answer"),
    ],
)
def test_the_exit_code_tells_how_it_ended(program: Program, arguments: list[str], code: int, words: str) -> None:
    """Scripts need no parsing; an exception's text is shown to nobody."""
    program.serve()
    done = program.run("chat", *arguments)
    assert done.returncode == code
    assert words in done.stderr.splitlines()[-1]
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("served", [True, False])
def test_an_interrupt_cancels_the_turn_and_waits_for_its_end(program: Program, served: bool) -> None:
    """What was said so far stays, the turn is cancelled in the service too, and the exit code is 130."""
    if served:
        program.serve()
    chat = program.start("chat", "endless")
    said = read_until(chat.stdout, "on and on")
    chat.send_signal(signal.SIGINT)
    out, err = chat.communicate(timeout=30)
    assert said + out == "You said: on and on\n"
    assert "— cancelled" in err
    assert chat.returncode == 130


def test_an_approval_is_denied_where_nobody_can_be_asked(program: Program) -> None:
    """Default deny, and the person is told how to approve."""
    program.serve()
    done = program.run("chat", "book")
    assert "--yes approves" in done.stderr
    assert "approval: denied by local" in done.stderr


@pytest.mark.parametrize(("answer", "words"), [("y", "approval: approved by local"), ("n", "approval: denied by local")])
def test_an_approval_is_asked_for_at_the_terminal(program: Program, answer: str, words: str) -> None:
    """A person answers with one letter."""
    program.serve()
    mine, theirs = pty.openpty()
    chat = subprocess.Popen(
        program.argv("chat", "book"), cwd=program.folder, env=program.environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        read_until(mine, "[y/n]")
        os.write(mine, f"{answer}\n".encode())
        read_until(mine, words)
        read_until(mine, "—")
        chat.wait(timeout=30)
    finally:
        chat.kill()
        chat.wait()
        os.close(mine)


def test_yes_approves_without_asking(program: Program) -> None:
    """For scripts whose author has decided."""
    program.serve()
    done = program.run("chat", "book", "--yes")
    assert done.returncode == 0
    assert "approval: approved by local" in done.stderr
    assert "[y/n]" not in done.stderr
    assert "Booking the amount: ok" in done.stderr


def test_with_keys_chat_needs_one_and_takes_it_from_a_file(program: Program) -> None:
    """A1: without a key 401; a key file keeps the key out of the list of processes."""
    key = program.run("key", "create", "--user", "ann").stdout
    (program.folder / "key").write_text(key, encoding="utf-8")
    program.serve()
    refused = program.run("chat", "hello")
    assert refused.returncode == 5
    assert "--key-file" in refused.stderr
    done = program.run("chat", "hello", "--key-file", "key")
    assert (done.returncode, done.stdout) == (0, "You said: hello\n")
