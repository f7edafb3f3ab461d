"""The service without any key: open on loopback, to this machine's own pages and programs alone (PROTOCOL A1)."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.needs import require
from tests.plan_by_words import by_words
from tests.service import Service, wait_until
from tests.upstream import Upstream


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream) as running:
        yield running


PATHS = [("GET", "/v1/conversations"), ("POST", "/v1/conversations"), ("GET", "/"), ("GET", "/metrics"), ("GET", "/nothing")]


def test_everyone_is_local(service: Service) -> None:
    """No key is asked for, and any that is given is passed over: all have the same conversations (A1)."""
    conversation = service.conversation()
    for headers in ({}, {"Authorization": "Bearer eb_anything"}, {"Cookie": "earlybyte_session=x"}):
        assert service.call("GET", f"/v1/conversations/{conversation}", headers=headers).status == 200
    stream = service.stream('call guarded {"value": "x"}', conversation)
    question = stream.wait_for("approval_required")
    turn = stream.events[0]["turn_id"]
    service.call("POST", f"/v1/turns/{turn}/approvals/{question['approval_id']}", {"decision": "deny"})
    assert stream.read_to_end().of("approval_resolved")[0]["by"] == "local"


def test_tickets_work_where_none_is_needed(service: Service) -> None:
    """A page that always asks for a ticket runs on an open service, too (section 1)."""
    turn = service.start_turn("hello")
    service.settled(turn)
    ticket = service.call("POST", f"/v1/turns/{turn}/tickets").json["ticket"]
    with service.attach(turn, query=f"?ticket={ticket}") as stream:
        assert stream.read_to_end().types[-1] == "stream_end"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.0.2.1:{port}",
        "0.0.0.0:{port}",
    ],
)
def test_a_foreign_host_is_403(service: Service, host: str) -> None:
    """A page whose name was made to point here (DNS rebinding) is no page of ours, on every route (A1)."""
    for method, path in PATHS:
        reply = service.call(method, path, headers={"Host": host.format(port=service.port)})
        assert (reply.status, reply.code) == (403, "forbidden"), (method, path)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "127.0.0.9", "LOCALHOST"]
)
def test_a_loopback_host_is_served(service: Service, host: str) -> None:
    """Every name of this machine for itself will do, with or without the port (A1)."""
    assert service.call("GET", "/v1/conversations", headers={"Host": host.format(port=service.port)}).status == 200


def test_a_request_without_a_host_is_403(service: Service) -> None:
    """HTTP/1.0 may leave it out; then nobody vouches for the name (A1)."""
    with socket.create_connection(("127.0.0.1", service.port), 10) as sock, sock.makefile("rb") as answer:
        sock.sendall(b"GET /v1/conversations HTTP/1.0\r\n\r\n")
        assert b" 403 " in answer.readline()


@pytest.mark.parametrize(
    "header",
    [
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-For", ""),
        ("X-Forwarded-Host", "localhost"),
        ("X-Forwarded-Proto", "https"),
        ("x-forwarded-anything", "1"),
        ("Forwarded", "for=127.0.0.1"),
    ],
)
def test_a_request_through_a_proxy_is_403(service: Service, header: tuple[str, str]) -> None:
    """A proxy would let the whole world be `local` (A1)."""
    for method, path in PATHS:
        reply = service.call(method, path, headers=dict([header]))
        assert (reply.status, reply.code) == (403, "forbidden"), (method, path)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "http://localhost:1", "file://", "http://127.0.0.1.evil.example:{port}"]
)
def test_a_foreign_page_is_403(service: Service, origin: str) -> None:
    """Any site that the user visits could otherwise talk to it; no CORS header is given either (A1, A3)."""
    sent = {"Origin": origin.format(port=service.port)}
    for method, path in PATHS:
        reply = service.call(method, path, headers=sent)
        assert (reply.status, reply.code) == (403, "forbidden"), (method, path)
        assert "access-control-allow-origin" not in reply.headers
    turn = service.start_turn("hello")
    assert service.attach(turn, headers=sent).status == 403
    assert service.call("POST", f"/v1/turns/{turn}/cancel", headers=sent).status == 403
    service.settled(turn)


def test_its_own_page_is_served(service: Service) -> None:
    """The Origin of the page that it serves itself, by whichever loopback name (A1)."""
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{service.port}"
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert service.call("POST", "/v1/conversations", {}, headers=headers).status == 201


def test_whether_it_is_open_is_decided_at_the_start(upstream: Upstream) -> None:
    """A first key closes it at the next start; revoking the last one never opens it again (A1)."""
    with Service(upstream) as service:
        key = service.make_key("ann")
        assert service.call("GET", "/v1/conversations", key=None).status == 200
        service.stop()
        service.start()
        assert service.call("GET", "/v1/conversations", key=None).status == 401
        assert service.call("GET", "/v1/conversations", key=key).status == 200
        with service.database() as database:
            database.execute("UPDATE api_keys SET revoked_at = 1")
        assert service.call("GET", "/v1/conversations", key=None).status == 401
        assert service.call("GET", "/v1/conversations", key=key).status == 401
        service.stop()
        service.start()
        assert service.call("GET", "/v1/conversations", key=None).status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_a_key_it_refuses_to_listen_to_others(upstream: Upstream, host: str) -> None:
    """On an address that others can reach: one sentence that says what to do, and no listener (A1)."""
    if host == "::" and not socket.has_ipv6:
        pytest.skip("needs IPv6: this machine has none")
    with Service(upstream, config={"server": {"host": host}}, start=False) as service:
        code, said = service.refuses_to_start()
        assert code == 2
        [sentence] = [line for line in said.splitlines() if line.startswith("earlybyte: ")]
        assert f"server.host = {host}" in sentence
        assert "earlybyte key create" in sentence
        assert "Traceback" not in said
        assert "serves" not in said
        key = service.make_key("ann")
        service.start()
        assert service.call("GET", "/v1/conversations", key=None).status == 401
        assert service.call("GET", "/v1/conversations", key=key, headers={"Host": "any.example"}).status == 200


def _own_address() -> str | None:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: it only chooses a way
        except OSError:
            return None
        address = str(sock.getsockname()[0])
    return None if address.startswith("127.") else address


def test_under_another_server_it_answers_to_this_machine_alone(upstream: Upstream) -> None:
    """`uvicorn app.main:app` may listen anywhere: a request from another address is 403, whatever Host it names (A1)."""
    address = require("a network address", _own_address(), "connect this machine to a network")
    with Service(upstream, start=False) as service:
        service.write_config()
        with socket.create_server(("0.0.0.0", 0)) as listener:
            service.config["server"]["port"] = listener.getsockname()[1]
            command = [sys.executable, "-m", "uvicorn", "app.main:app", "--fd", str(listener.fileno())]
            env = service.env | {"EARLYBYTE_CONFIG": str(service.config_file)}
            with subprocess.Popen(
                command,
                env=env,
                cwd=service.folder,
                pass_fds=[listener.fileno()],
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            ) as process:
                try:
                    assert wait_until(lambda: service.call("GET", "/livez"), 20).status == 200
                    for host in ("localhost", f"{address}:{service.port}"):
                        connection = http.client.HTTPConnection(address, service.port, timeout=10)
                        with contextlib.closing(connection):
                            connection.request("GET", "/v1/conversations", headers={"Host": host})
                            with connection.getresponse() as answer:
                                assert answer.status == 403
                finally:
                    process.kill()
