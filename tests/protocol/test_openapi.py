"""The OpenAPI document is true (PROTOCOL 1): schemathesis asks for what it promises, and for what it forbids."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.problems import STATUS
from app.store.errors import Conflict
from tests.service import PROJECT, Service
from tests.upstream import Upstream, say

PLENTY = {"limits": {"turns_per_user": 10_000, "turns_per_address": 10_000, "queued": 10_000}}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(lambda _: say("Hello")) as opened:
        yield opened


def _findings(service: Service, folder: Path, *more: str) -> str:
    """What schemathesis says, empty when it finds nothing."""
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{service.url}/openapi.json",
            "--max-examples=6",
            "--generation-deterministic",
            "--seed=1",
            "--no-shrink",
            "--request-timeout=20",
            "--warnings=off",
            "--no-color",
            *more,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert "Test cases:" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    return "" if done.returncode == 0 else done.stdout[done.stdout.find("FAILURES") :][:8000]


def test_the_open_service_does_what_its_openapi_says(upstream: Upstream, tmp_path: Path) -> None:
    """Statuses, content types, bodies, methods and refusals are those of the document, without keys (section 1, H1)."""
    with Service(upstream, config=PLENTY) as service:
        assert _findings(service, tmp_path, "--phases=coverage,fuzzing") == ""
        assert '"level":"error"' not in service.log()


def test_the_service_with_keys_does_what_its_openapi_says(upstream: Upstream, tmp_path: Path) -> None:
    """The same with a key, links between the operations followed, and no operation open without one (section 1, A1)."""
    with Service(upstream, config=PLENTY, start=False) as service:
        service.key = service.make_key("ann")
        service.start()
        assert _findings(service, tmp_path, "-H", f"Authorization: Bearer {service.key}") == ""
        assert '"level":"error"' not in service.log()


def test_openapi_names_every_route_of_the_contract(upstream: Upstream) -> None:
    """Each method and path of section 1 is in the document, so that the checks above leave nothing out."""
    with Service(upstream) as service:
        paths = service.call("GET", "/openapi.json").json["paths"]
    have = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    assert have >= {
        "POST /v1/conversations",
        "GET /v1/conversations",
        "GET /v1/conversations/{conversation_id}",
        "DELETE /v1/conversations/{conversation_id}",
        "GET /v1/conversations/{conversation_id}/messages",
        "GET /v1/conversations/{conversation_id}/active",
        "POST /v1/conversations/{conversation_id}/turns",
        "GET /v1/turns/{turn_id}",
        "GET /v1/turns/{turn_id}/events",
        "POST /v1/turns/{turn_id}/cancel",
        "POST /v1/turns/{turn_id}/approvals/{approval_id}",
        "POST /v1/turns/{turn_id}/tickets",
        "GET /v1/messages/{message_id}",
        "PUT /v1/messages/{message_id}/reaction",
        "DELETE /v1/messages/{message_id}/reaction",
        "POST /v1/session",
        "DELETE /v1/session",
        "GET /livez",
        "GET /readyz",
        "GET /metrics",
        "GET /v1/schema/events.json",
    }


def test_every_refusal_is_in_the_documentation() -> None:
    """Each error that the edge turns into a status has its code in docs/protocol.md (H1)."""
    text = (PROJECT / "docs" / "protocol.md").read_text(encoding="utf-8")
    table = text.partition("Refusals, by status")[2].partition("\n## ")[0]
    for kind, status in STATUS:
        if kind is not Conflict:  # told as an internal error: rows of ours that are in each other's way
            rows = [row for row in table.splitlines() if row.startswith(f"| {status} |")]
            assert any(f"`{kind.code}`" in row for row in rows), kind
