"""`earlybyte probe`: all right before a correct installation, and the fault by its name before each broken one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.breaking_proxy import Breaks, breaking_proxy
from tests.service import Service

# What the proxy breaks, and where the probe must find it.
BROKEN = {
    "the body is held back": (Breaks(hold=True), "headers"),
    "the stream is compressed": (Breaks(compress=True), "compression"),
    "silence is cut": (Breaks(cut_after=0.7), "idle cut"),
    "the cursor is lost": (Breaks(drop_headers=("Last-Event-ID",)), "resume"),
    "the key of the request is lost": (Breaks(drop_headers=("Idempotency-Key",)), "repeated POST"),
    "every page is allowed": (Breaks(allow_all=True), "CORS"),
    "the type is changed": (Breaks(answer_as="text/plain"), "headers"),
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    # The demo model, which keeps silent when it is asked to; a keep-alive every second, so that silence can be told soon.
    with Service(rungs={"keep_alive": 1, "client_watchdog": 9}) as one:
        yield one


def probe(service: Service, url: str, *more: str) -> tuple[int, list[dict[str, str]], str]:
    done = subprocess.run(
        [sys.executable, "-m", "app", "probe", url, "--json", *more, "--config", str(service.config_file)],
        env=service.env,
        cwd=service.folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else [], done.stderr


def test_a_correct_installation_is_all_right(service: Service) -> None:
    """Nothing is wrong, and each of the things was looked at."""
    code, findings, said = probe(service, service.url, "--patience", "3")
    assert code == 0, (findings, said)
    assert {f["where"] for f in findings} >= {
        "early byte",
        "headers",
        "compression",
        "buffering",
        "resume",
        "end",
        "204 after the end",
        "repeated POST",
        "keep-alive",
        "CORS",
        "HTTP version",
    }
    assert not [f for f in findings if f["verdict"] == "WRONG"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_installation_is_named(name: str, service: Service) -> None:
    """One fault between the probe and the service is found, with words that mend it."""
    breaks, where = BROKEN[name]
    with breaking_proxy(service.port, breaks) as port:
        code, findings, said = probe(
            service, f"http://127.0.0.1:{port}", "--patience", "3", "--input", "What is a VAT number?"
        )
    assert code == 1, (findings, said)
    wrong = [f for f in findings if f["verdict"] == "WRONG"]
    assert where in {f["where"] for f in wrong}, wrong
    assert all(f["mend"] for f in wrong)


def test_any_stream_can_be_watched(service: Service) -> None:
    """`--raw` watches an address without knowing what it says; one that is no stream is said to be none."""
    turn = service.start_turn("be silent for 6 seconds")
    code, findings, said = probe(service, f"{service.url}/v1/turns/{turn}/events", "--raw", "--patience", "3")
    assert code == 0, (findings, said)
    assert probe(service, f"{service.url}/nothing", "--raw", "--patience", "2")[0] == 1


def test_without_a_good_key_the_mend_names_it() -> None:
    """A1: none at all, a wrong one, and the right one from the environment; a stranger's stream gets none by itself."""
    with Service(start=False) as closed:
        key = closed.make_key("ann")
        closed.start()
        code, _, said = probe(closed, closed.url, "--patience", "1")
        assert (code, said.count("\n")) == (2, 1)
        assert said.endswith("Give --key-file.\n")
        assert "Is the key right?" in probe(closed, closed.url, "--patience", "1", "--key", "eb_wrong")[2]
        closed.env["EARLYBYTE_KEY"] = key
        code, findings, said = probe(closed, closed.url, "--patience", "1")
        assert code == 0, (findings, said)
        code, findings, _ = probe(closed, f"{closed.url}/v1/conversations", "--raw", "--patience", "1")
        assert (code, findings[0]["what"], findings[0]["mend"]) == (1, "the answer is 401", "Give --key-file.")


def test_an_installation_that_does_not_answer_is_one_sentence(service: Service) -> None:
    """Nobody at home is an error of usage, in one line."""
    code, _, said = probe(service, "http://127.0.0.1:9")
    assert code == 2
    assert said.count("\n") == 1
