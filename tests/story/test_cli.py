"""The command line as a person meets it: at a terminal, against a running service and without one (PROTOCOL 8)."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.plan_by_words import ANSWER, by_words, last_words
from tests.service import Service, wait_until
from tests.upstream import Request, Script, Text, Upstream, say, use


def _plan(request: Request) -> Script:
    """As usual, and two words of its own: `trick` says what a terminal would obey, `slowly` uses a tool between words."""
    words = last_words(request)
    told = request.body["messages"][-1]["role"] == "tool"
    if words == "trick":
        return say("be\x1b]0;owned\x07fore\x1b[2Jafter")
    if words == "slowly":
        return say("It is ", "done.") if told else [Text("Wait. "), *use(("call_1", "slow", {"seconds": 0.5}))]
    return by_words(request)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(_plan) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream) as running:
        yield running


@pytest.fixture
def alone(upstream: Upstream) -> Iterator[Service]:
    """A configuration whose service does not run: `chat` serves within its own process."""
    with Service(upstream, start=False) as stopped:
        stopped.write_config()
        yield stopped


class Terminal:
    """A program with a terminal of its own, as its controlling one: what is typed reaches it as keys do."""

    def __init__(self, service: Service, *arguments: str) -> None:
        self._mine, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", *arguments, "--config", str(service.config_file)],
            env=service.env | {"TERM": "xterm"},
            cwd=service.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - two system calls
        )
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def wait_for(self, words: str, timeout: float = 30.0) -> float:
        """The moment at which these words stood on the screen."""
        give_up_at = time.monotonic() + timeout
        while words not in self.seen:
            assert self._read(give_up_at), f"{words!r} did not come: {self.seen[-500:]!r}"
        return time.monotonic()

    def type(self, keys: str) -> None:
        os.write(self._mine, keys.encode())

    def exit_code(self, timeout: float = 30.0) -> int:
        """Its exit code, with the rest of what it said in `seen`."""
        give_up_at = time.monotonic() + timeout
        while self._read(give_up_at):
            pass
        return self.process.wait(max(1.0, give_up_at - time.monotonic()))

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self._mine], [], [], max(0.0, until - time.monotonic()))
        try:
            piece = os.read(self._mine, 65536) if ready else b""
        except OSError:  # how Linux says that the other side is closed
            piece = b""
        self.seen += piece.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(piece)


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _plain(screen: str) -> str:
    """Without the colours that are ours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", screen)


@pytest.mark.parametrize("served", [True, False], ids=["running service", "own process"])
def test_the_answer_appears_while_it_is_made(service: Service, alone: Service, served: bool) -> None:
    """Words come one after the other, not all at the end; the last line says how it ended (section 8)."""
    with Terminal(service if served else alone, "chat", "drip 30") as terminal:
        early = terminal.wait_for("0 1 2 ")
        late = terminal.wait_for("28 29 ")
        assert late - early > 0.5
        assert terminal.exit_code() == 0
    assert "".join(f"{number} " for number in range(30)) in terminal.seen
    assert _plain(terminal.seen).splitlines()[-1].startswith("— complete")


def test_tools_are_lines_between_the_text(service: Service) -> None:
    """A line when a tool starts and one when it ends, in a person's words, in the order of the events (section 3)."""
    with Terminal(service, "chat", "slowly") as terminal:
        assert terminal.exit_code() == 0
    lines = _plain(terminal.seen).splitlines()
    places = [
        next(place for place, line in enumerate(lines) if words in line)
        for words in ("Wait. ", "▸ Working slowly …", "Working slowly: ok, 0.", "It is done.", "— complete")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("served", [True, False], ids=["running service", "own process"])
def test_ctrl_c_stops_the_turn_and_waits_for_its_end(
    service: Service, alone: Service, upstream: Upstream, served: bool
) -> None:
    """The key itself: the turn is cancelled in the service and at the model, and the exit code is 130 (section 8)."""
    with Terminal(service if served else alone, "chat", "hang") as terminal:
        terminal.wait_for("begun")
        request = upstream.requests[-1]
        terminal.type("\x03")
        assert terminal.exit_code() == 130
    assert "stopping …" in terminal.seen
    assert "— cancelled" in _plain(terminal.seen)
    assert "Traceback" not in terminal.seen
    assert request.gone.wait(10), "the model was left talking"


def test_a_second_ctrl_c_leaves_at_once(service: Service) -> None:
    """Also when the turn does not end: a tool that is deaf to its cancel holds up nobody (section 8)."""
    with Terminal(service, "chat", 'call block {"seconds": 3}') as terminal:
        terminal.wait_for("▸ Blocking")
        terminal.type("\x03")
        terminal.wait_for("stopping …")
        terminal.type("\x03")
        assert terminal.exit_code(10) == 130
    assert "Traceback" not in terminal.seen


def test_an_approval_is_asked_for_and_answered_at_the_terminal(service: Service) -> None:
    """Another key than y or n is asked about again; the call runs only after the yes (section 3)."""
    before = len(service.ledger(tool="guarded"))
    with Terminal(service, "chat", 'call guarded {"value": "x"}') as terminal:
        terminal.wait_for("[y/n]")
        terminal.type("maybe\n")
        terminal.wait_for("y or n?")
        assert len(service.ledger(tool="guarded")) == before
        terminal.type("y\n")
        assert terminal.exit_code() == 0
    lines = _plain(terminal.seen)
    assert "approval: approved by local" in lines
    assert "Paying out: ok" in lines
    assert len(service.ledger(tool="guarded")) == before + 1


def test_ctrl_c_at_a_question_is_no_yes(service: Service) -> None:
    """The turn ends cancelled, the question with it, and nothing was paid (section 3)."""
    before = len(service.ledger(tool="guarded"))
    with Terminal(service, "chat", 'call guarded {"value": "x"}') as terminal:
        terminal.wait_for("[y/n]")
        terminal.type("\x03")
        assert terminal.exit_code() == 130
    assert len(service.ledger(tool="guarded")) == before


def test_an_answer_cannot_steer_the_terminal(service: Service) -> None:
    """Control characters of the model are shown as such and not obeyed; a pipe gets them as they are (section 8)."""
    with Terminal(service, "chat", "trick") as terminal:
        assert terminal.exit_code() == 0
    screen = _plain(terminal.seen)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", screen)
    assert "fore" in screen
    assert service.cli("chat", "trick").stdout == "be\x1b]0;owned\x07fore\x1b[2Jafter\n"


def test_a_turn_is_followed_over_broken_connections(upstream: Upstream) -> None:
    """Rotated every second, `chat` resumes by id: the answer is whole, and nothing is said twice (section 4)."""
    with Service(upstream, rungs={"connection_age": 1.0}) as service:
        done = service.cli("chat", "drip 50")
    assert done.returncode == 0
    assert done.stdout == "".join(f"{number} " for number in range(50)) + "\n"


def test_a_conversation_goes_on(service: Service, upstream: Upstream) -> None:
    """`--conversation` sends the next input into an earlier one, whose words the model sees (section 8)."""
    conversation = service.conversation()
    for words in ("my first words", "my second words"):
        done = service.cli("chat", words, "--conversation", conversation)
        assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n")
    said = [message["content"] for message in upstream.requests[-1].body["messages"] if message["role"] == "user"]
    assert len(said) == 2
    assert len(service.messages(conversation)) == 4


@pytest.mark.parametrize(
    ("words", "code", "last"),
    [("status 401", 4, ""), ("status 400", 4, ""), ("hello", 0, "— complete"), ("call fail", 0, "— complete")],
)
def test_a_refusing_model_is_an_apology_without_details(service: Service, words: str, code: int, last: str) -> None:
    """A wrong key at the model: one sentence of apology, exit code 4, and the reason in the log alone (section 5)."""
    done = service.cli("chat", words)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(last or "— ")
    for inside in ("401", "upstream_rejected", "127.0.0.1", "scripted", "on purpose", "Traceback"):
        assert inside not in done.stdout + done.stderr


def test_keys_are_made_listed_and_revoked(upstream: Upstream) -> None:
    """`key create` prints the key alone; `list` shows whose it is and not itself; `revoke` makes it useless (A1)."""
    with Service(upstream, start=False) as service:
        made = service.cli("key", "create", "--user", "ann", "--role", "admin")
        assert made.returncode == 0
        key = made.stdout.strip()
        assert made.stdout == f"{key}\n"
        assert re.fullmatch(r"eb_[0-9A-Za-z]{32,}", key)
        service.start()
        key_file = service.folder / "key.txt"
        key_file.write_text(key + "\n", encoding="utf-8")
        assert service.cli("chat", "hello", "--key-file", str(key_file)).stdout == f"{ANSWER}\n"
        listed = service.cli("key", "list")
        assert listed.returncode == 0
        [line] = listed.stdout.splitlines()
        assert re.search(r"^key_\S+ +admin +.* good +ann$", line)
        assert key not in listed.stdout + listed.stderr + made.stderr
        key_id = line.split()[0]
        assert service.cli("key", "revoke", key_id).returncode == 0
        assert "revoked" in service.cli("key", "list").stdout
        refused = service.cli("chat", "hello", "--key-file", str(key_file))
        assert (refused.returncode, refused.stdout) == (5, "")
        assert "401" in refused.stderr
        assert key not in refused.stderr
        again = service.cli("key", "revoke", key_id)
        assert again.returncode == 1
        assert len(again.stderr.splitlines()) == 1


def test_the_key_may_come_from_the_environment(upstream: Upstream) -> None:
    """EARLYBYTE_KEY is for clients; `--key` wins over it, and the service does not refuse it as an unknown setting (A1)."""
    with Service(upstream, start=False) as service:
        key = service.make_key("ann")
        service.env["EARLYBYTE_KEY"] = key
        service.start()
        done = service.cli("chat", "hello")
        assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n")
        refused = service.cli("chat", "hello", "--key", "eb_wrong")
        assert refused.returncode == 5
        assert "EARLYBYTE_KEY" in refused.stderr
        assert key not in service.log() + done.stderr + refused.stderr


@pytest.mark.parametrize("words", ["status 401", "call fail"])
def test_a_service_of_its_own_writes_no_log_into_the_terminal(alone: Service, words: str) -> None:
    """What goes wrong in the turn is told by its events; the log comes where it is asked for (section 8)."""
    done = alone.cli("chat", words)
    first, *others = done.stderr.splitlines()
    assert "serving within this process" in first
    assert "EARLYBYTE_SERVER__LOG_LEVEL=debug" in first
    assert len(others) <= 3, done.stderr
    assert not [line for line in others if not line.startswith(("▸ ", "  ", "— "))], done.stderr
    alone.env["EARLYBYTE_SERVER__LOG_LEVEL"] = "debug"
    assert '"level":' in alone.cli("chat", words).stderr


def test_a_wrong_key_file_is_one_sentence(alone: Service) -> None:
    """A file that is not there, or no text, is told by name with exit code 2 (section 8)."""
    (alone.folder / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("none.txt", "bytes", "."):
        done = alone.cli("chat", "hello", "--key-file", name)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert f"key file {name}" in done.stderr


def test_migrate_and_check_say_what_they_found(alone: Service) -> None:
    """`migrate` makes the schema, twice if need be, `check` says ok for each part (section 8)."""
    for _ in range(2):
        done = alone.cli("migrate")
        assert done.returncode == 0, done.stderr
        assert "has the schema" in done.stdout
    checked = alone.cli("check")
    assert checked.returncode == 0, checked.stderr
    assert re.search(r"^ok +configuration$", checked.stdout, re.MULTILINE)
    assert re.search(r"^ok +store ", checked.stdout, re.MULTILINE)
    assert re.search(r"^ok +profile default: openai, tools record, look_up, ", checked.stdout, re.MULTILINE)
    alone.store_file.write_bytes(b"this is no database, and much longer than a header of one " * 20)
    for command in ("migrate", "check", "serve"):
        broken = alone.cli(command)
        assert broken.returncode in {1, 2}
        [sentence] = [line for line in broken.stderr.splitlines() if line.startswith("earlybyte: ")]
        assert str(alone.store_file) in sentence
        assert "Traceback" not in broken.stdout + broken.stderr


def test_the_installed_program_is_the_same_as_python_m_app(alone: Service) -> None:
    """`earlybyte` and `python -m app`: the same help and the same version (section 8)."""
    script = Path(sys.executable).with_name("earlybyte")
    for arguments in (["--help"], ["--version"], ["chat", "--help"]):
        installed = subprocess.run(
            [script, *arguments], env=alone.env, capture_output=True, text=True, timeout=30, check=True
        )
        module = alone.cli(*arguments)
        assert installed.stdout == module.stdout != ""


def test_a_pipe_that_closes_early_is_no_trace(service: Service) -> None:
    """`earlybyte chat … | head -c 1`: the reader has gone, and that is all (section 8)."""
    command = [sys.executable, "-m", "app", "chat", "drip 10", "--config", str(service.config_file)]
    with subprocess.Popen(
        command,
        env=service.env,
        cwd=service.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as chat:
        assert chat.stdout is not None
        assert chat.stderr is not None
        chat.stdout.read(1)
        chat.stdout.close()
        said = chat.stderr.read().decode()
        assert chat.wait(30) != 0
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
    wait_until(lambda: service.call("GET", "/readyz").status == 200)


def test_serve_takes_an_address_that_wins_over_the_configuration(service: Service) -> None:
    """`--port` and `--host` are checked as the settings are; a port in use says what else there is."""
    taken = service.cli("serve", "--port", str(service.port))
    assert taken.returncode == 2
    assert "--port 9000" in taken.stderr
    assert "EARLYBYTE_SERVER__PORT" in taken.stderr
    for port in ("http", "70000"):
        wrong = service.cli("serve", "--port", port)
        assert wrong.returncode == 2
        assert wrong.stderr.startswith(f'earlybyte: --port: server.port = "{port}" is not allowed: it must be ')
    elsewhere = service.cli("serve", "--host", "no.such.host.invalid")
    assert elsewhere.returncode == 2
    assert "no.such.host.invalid is not an address of this machine" in elsewhere.stderr
