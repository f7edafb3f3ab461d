"""Who may do what on a service with keys: keys, cookies, tickets, other people's things, pages of elsewhere (PROTOCOL 7)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookies import Morsel, SimpleCookie
from typing import Any

import pytest

from tests.plan_by_words import ANSWER, by_words
from tests.service import UPSTREAM_KEY, Reply, Service, wait_until
from tests.upstream import Upstream

PAGE = "https://app.example"
MINUTE = 60_000


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    config = {
        "server": {"cors_origins": [PAGE], "trusted_proxies": ["127.0.0.1"]},
        "limits": {"turns_per_user": 1000, "turns_per_address": 6, "viewers_per_user": 1000, "viewers_per_address": 1000},
    }
    with Service(upstream, config=config, start=False) as running:
        running.key = running.make_key("ann")
        running.start()
        yield running


@pytest.fixture(scope="module")
def strangers(service: Service) -> dict[str, str]:
    """Good keys of other people, of whom one has the same name in another tenant."""
    return {
        "another user": service.make_key("bob"),
        "an admin": service.make_key("root", role="admin"),
        "the same name in another tenant": service.make_key("ann", tenant="other"),
    }


@pytest.fixture(scope="module")
def useless(service: Service) -> dict[str, dict[str, str]]:
    """Headers that let nobody in."""
    past = int(time.time() * 1000) - 1000
    revoked = service.make_key("ann", revoked_at=past)
    expired = service.make_key("ann", expires_at=past)
    return {
        "no key": {},
        "an empty key": {"Authorization": "Bearer "},
        "a wrong key": {"Authorization": f"Bearer eb_{'0' * 64}"},
        "garbage": {"Authorization": "Bearer \u00e9\u00ff"},
        "a revoked key": {"Authorization": f"Bearer {revoked}"},
        "an expired key": {"Authorization": f"Bearer {expired}"},
        "a good key in another scheme": {"Authorization": f"Basic {service.key}"},
        "a made-up cookie": {"Cookie": "earlybyte_session=ebs_0000"},
    }


@dataclass
class Things:
    """What Ann has: a turn that waits for her yes, and one that is done."""

    conversation: str
    turn: str
    approval: str
    message: str
    done_turn: str

    def path(self, template: str) -> str:
        """A path of the OpenAPI document with these ids."""
        return template.format(
            conversation_id=self.conversation, turn_id=self.turn, approval_id=self.approval, message_id=self.message
        )


def _things(service: Service) -> Things:
    conversation = service.conversation(title="Ann's secret")
    done = service.settled(service.start_turn("hello", conversation))
    stream = service.stream('call guarded {"value": "x"}', conversation)
    question = stream.wait_for("approval_required")
    return Things(conversation, stream.events[0]["turn_id"], question["approval_id"], done["message_id"], done["id"])


BODIES: dict[str, object] = {
    "POST /v1/conversations": {},
    "POST /v1/conversations/{conversation_id}/turns": {"input": "hello", "on_busy": "interrupt"},
    "POST /v1/turns/{turn_id}/approvals/{approval_id}": {"decision": "approve"},
    "PUT /v1/messages/{message_id}/reaction": {"reaction": "like"},
}
OPEN = {
    "GET /livez",
    "GET /readyz",
    "GET /metrics",
    "GET /v1/schema/events.json",
    "POST /v1/session",
    "DELETE /v1/session",
}


def _operations(service: Service) -> list[tuple[str, str]]:
    paths = service.call("GET", "/openapi.json", key=None).json["paths"]
    found = [(method.upper(), path) for path, operations in paths.items() for method in operations]
    return [(method, path) for method, path in found if f"{method} {path}" not in OPEN]


def _stop(service: Service, things: Things) -> None:
    service.call("POST", f"/v1/turns/{things.turn}/cancel")
    service.settled(things.turn)


# -- every route (A1, A2)


def test_without_a_valid_key_every_route_is_401(service: Service, useless: dict[str, dict[str, str]]) -> None:
    """Default deny: no, wrong, revoked and expired credentials are 401 on each route, also for things that exist (A1)."""
    things = _things(service)
    operations = _operations(service)
    assert len(operations) >= 15
    for method, path in operations:
        for name, headers in useless.items():
            for accept in ("application/json", "text/event-stream"):
                body = BODIES.get(f"{method} {path}")
                sent = {**headers, "Accept": accept, "Origin": service.url}
                reply = service.call(method, things.path(path), body, headers=sent, key=None)
                assert (reply.status, reply.code) == (401, "unauthenticated"), (method, path, name)
                assert reply.headers["www-authenticate"] == "Bearer"
    assert service.turn(things.turn)["status"] == "waiting"
    _stop(service, things)


def test_another_users_things_are_404_on_every_route(service: Service, strangers: dict[str, str]) -> None:
    """Not 403: who may not see a thing does not learn that it is there; and nothing of it changes (A2)."""
    things = _things(service)
    operations = [(method, path) for method, path in _operations(service) if "{" in path]
    assert len(operations) >= 12
    before = service.turn(things.turn)
    for method, path in operations:
        body = BODIES.get(f"{method} {path}")
        for name, key in strangers.items():
            if name == "an admin" and path.endswith("/cancel"):
                continue  # the one thing that an admin may do with it
            for accept in ("application/json", "text/event-stream", "application/x-ndjson"):
                headers = {"Accept": accept, "Last-Event-ID": f"{things.turn}-1-1"}
                reply = service.call(method, things.path(path), body, headers=headers, key=key)
                assert (reply.status, reply.code) == (404, "not_found"), (method, path, name)
                assert "secret" not in reply.body.decode()
    for key in strangers.values():
        listed = service.call("GET", "/v1/conversations?limit=100", key=key).json["items"]
        assert things.conversation not in [item["id"] for item in listed]
    assert service.turn(things.turn) == before
    assert "reaction" not in service.call("GET", f"/v1/messages/{things.message}").json
    assert len(service.messages(things.conversation)) == 3
    _stop(service, things)


def test_the_owner_may_use_every_route(service: Service) -> None:
    """The same requests with the owner's key succeed, which shows that the two tests above ask for real things (A2)."""
    operations = _operations(service)
    # What ends things comes last, and what ends all of them at the very end.
    operations.sort(key=lambda op: (op[0] == "DELETE", op[1].count("/") < 4, "turns" in op[1] and op[0] == "POST"))
    for method, path in operations:
        things = _things(service)
        reply = service.open(
            method, things.path(path), BODIES.get(f"{method} {path}"), accept="application/json", headers={}
        )
        wanted = {403} if path.startswith("/v1/admin/") else set(range(200, 300))
        assert reply.status in wanted, (method, path, reply.body)
        reply.close()
        service.call("DELETE", f"/v1/conversations/{things.conversation}")


def test_an_admin_lists_and_stops_the_turns_of_its_tenant_and_reads_none(service: Service) -> None:
    """A2: who, which, how long and how it ended, never what was said; another tenant's are not there."""
    admin = service.make_key("root", role="admin")
    foreign = service.make_key("root", role="admin", tenant="other")
    things = _things(service)
    page = service.call("GET", "/v1/admin/turns?limit=1", key=admin).json
    assert (page["items"][0]["id"], page["items"][0]["user_id"], page["items"][0]["status"]) == (
        things.turn,
        "ann",
        "waiting",
    )
    following = service.call("GET", f"/v1/admin/turns?limit=1&cursor={page['next_cursor']}", key=admin).json
    assert (following["items"][0]["id"], following["items"][0]["reason"]) == (things.done_turn, "stop")
    waiting = service.call("GET", "/v1/admin/turns?status=waiting&limit=100", key=admin)
    assert things.turn in [item["id"] for item in waiting.json["items"]]
    assert "hello" not in waiting.body.decode()
    assert service.call("GET", "/v1/admin/turns?cursor=nonsense", key=admin).status == 422
    assert things.turn not in service.call("GET", "/v1/admin/turns?limit=100", key=foreign).body.decode()
    assert service.call("POST", f"/v1/turns/{things.turn}/cancel", key=foreign).status == 404
    assert service.call("POST", f"/v1/turns/{things.turn}/cancel", key=admin).status == 202
    ended = service.settled(things.turn)
    assert ended["terminal"]["status"] == "cancelled"
    assert service.call("POST", f"/v1/turns/{things.turn}/cancel", key=admin).status == 200


def test_another_users_idea_of_an_existing_and_a_made_up_thing_is_the_same(
    service: Service, strangers: dict[str, str]
) -> None:
    """The refusal of a thing that exists differs from that of one that does not by its id alone (A2)."""
    conversation = service.conversation()
    mine = service.call("GET", f"/v1/conversations/{conversation}", key=strangers["another user"])
    none = service.call("GET", "/v1/conversations/conv_none", key=strangers["another user"])
    assert mine.body.replace(conversation.encode(), b"X") == none.body.replace(b"conv_none", b"X")


def test_what_needs_no_key_answers_without_one(service: Service) -> None:
    """`/livez`, `/readyz`, `/metrics`, the schema and the page (A4, section 1)."""
    for path in ("/livez", "/readyz", "/metrics", "/v1/schema/events.json", "/"):
        assert service.call("GET", path, key=None).status == 200, path


# -- keys (A1)


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/v1"])
def test_an_address_that_is_none_is_told_so(service: Service, path: str) -> None:
    """H1: a sentence, and not the framework's two words."""
    reply = service.call("GET", path)
    assert (reply.status, reply.code) == (404, "not_found")
    assert reply.json["detail"] == "There is nothing at this address."


def test_a_revoked_key_is_useless_at_once(service: Service) -> None:
    """No restart, no cache: the next request after `key revoke` is 401 (A1)."""
    key = service.make_key("cy")
    assert service.call("GET", "/v1/conversations", key=key).status == 200
    listed = service.cli("key", "list").stdout
    [key_id] = [line.split()[0] for line in listed.splitlines() if line.endswith(" cy")]
    assert service.cli("key", "revoke", key_id).returncode == 0
    assert service.call("GET", "/v1/conversations", key=key).status == 401


def test_keys_are_stored_hashed(service: Service) -> None:
    """No key, ticket or session is in the store in the clear (A1)."""
    assert service.key is not None
    turn = service.start_turn("hello")
    service.settled(turn)
    ticket = service.call("POST", f"/v1/turns/{turn}/tickets").json["ticket"]
    cookie = _signed_in(service).value
    with service.database() as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    stored = b"".join(path.read_bytes() for path in service.folder.glob("store.db*"))
    for secret in (service.key, ticket, cookie):
        assert secret.encode() not in stored


# -- browsers (section 1, A3)


def _sign_in(service: Service, key: str | None = None, **headers: str) -> Reply:
    return service.call("POST", "/v1/session", {"key": key or service.key}, headers=headers, key=None)


def _cookie(reply: Reply) -> Morsel[str]:
    cookies = SimpleCookie(reply.headers["set-cookie"])
    [morsel] = cookies.values()
    return morsel


def _signed_in(service: Service) -> Morsel[str]:
    reply = _sign_in(service)
    assert (reply.status, reply.json) == (200, {"user_id": "ann", "role": "user"})
    return _cookie(reply)


def _with_cookie(service: Service, method: str, path: str, cookie: str, body: object = None, **headers: str) -> Reply:
    return service.call(method, path, body, headers={"Cookie": f"earlybyte_session={cookie}", **headers}, key=None)


def test_the_cookie_is_httponly_samesite_and_secure_except_on_loopback(service: Service) -> None:
    """No script reads it, no other site sends it along, and off this machine it goes over TLS alone (section 1)."""
    here = _signed_in(service)
    assert (here["httponly"], here["samesite"].lower(), here["path"], here["secure"]) == (True, "lax", "/", "")
    there = _cookie(_sign_in(service, Host="chat.example"))
    assert (there["httponly"], there["samesite"].lower(), there["secure"]) == (True, "lax", True)
    assert service.key is not None
    assert service.key not in here.value


def test_a_signed_in_browser_reads_and_writes_from_its_own_page(service: Service) -> None:
    """GET needs no Origin; other methods need this service's own, or one of `cors_origins` (A3)."""
    cookie = _signed_in(service).value
    assert _with_cookie(service, "GET", "/v1/conversations", cookie).status == 200
    for origin in (service.url, PAGE):
        assert _with_cookie(service, "POST", "/v1/conversations", cookie, {}, Origin=origin).status == 201


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "https://evil.example",
        f"{PAGE}.evil.example",
        "https://xapp.example",
        "http://app.example",
        f"{PAGE}:444",
    ],
)
def test_a_cookie_from_another_page_changes_nothing(service: Service, origin: str | None) -> None:
    """A wrong or absent Origin on a cookie's request other than GET is 403, sign-out included (A3)."""
    cookie = _signed_in(service).value
    headers = {"Origin": origin} if origin is not None else {}
    turn = service.start_turn("hang")
    for method, path, body in [
        ("POST", "/v1/conversations", {}),
        ("POST", f"/v1/turns/{turn}/cancel", None),
        ("POST", f"/v1/turns/{turn}/tickets", None),
        ("DELETE", "/v1/session", None),
    ]:
        reply = _with_cookie(service, method, path, cookie, body, **headers)
        assert (reply.status, reply.code) == (403, "forbidden"), (method, path)
    assert service.turn(turn)["status"] == "running"
    assert _with_cookie(service, "GET", "/v1/conversations", cookie).status == 200
    service.call("POST", f"/v1/turns/{turn}/cancel")
    service.settled(turn)


def test_signing_in_needs_a_good_key_and_no_foreign_page(service: Service, useless: dict[str, dict[str, str]]) -> None:
    """A wrong, revoked or expired key is 401; another page cannot sign a browser in as somebody else (A3)."""
    for name in ("a wrong key", "a revoked key", "an expired key"):
        reply = _sign_in(service, useless[name]["Authorization"].removeprefix("Bearer "))
        assert (reply.status, reply.code) == (401, "unauthenticated"), name
        assert "set-cookie" not in reply.headers
    for origin in ("https://evil.example", "null"):
        foreign = _sign_in(service, Origin=origin)
        assert (foreign.status, foreign.code) == (403, "forbidden")
        assert "set-cookie" not in foreign.headers


def test_signing_out_ends_the_session_and_not_only_the_cookie(service: Service) -> None:
    """After it the old cookie's value is 401; signing out twice, or without a cookie, is 204 (section 1)."""
    cookie = _signed_in(service).value
    out = _with_cookie(service, "DELETE", "/v1/session", cookie, Origin=service.url)
    assert out.status == 204
    assert _cookie(out)["max-age"] == "0"
    assert _with_cookie(service, "GET", "/v1/conversations", cookie).status == 401
    assert _with_cookie(service, "DELETE", "/v1/session", cookie, Origin=service.url).status == 204
    assert service.call("DELETE", "/v1/session", key=None).status == 204


def test_a_session_is_worth_no_more_than_its_key(service: Service) -> None:
    """It ends with its own time, and with its key (A1)."""
    old = _signed_in(service).value
    with service.database() as database:
        database.execute("UPDATE sessions SET expires_at = ?", (int(time.time() * 1000) - 1,))
    assert _with_cookie(service, "GET", "/v1/conversations", old).status == 401
    key = service.make_key("dee")
    cookie = _cookie(_sign_in(service, key)).value
    assert _with_cookie(service, "GET", "/v1/conversations", cookie).status == 200
    with service.database() as database:
        database.execute("UPDATE api_keys SET revoked_at = 1 WHERE user_id = 'dee'")
    assert _with_cookie(service, "GET", "/v1/conversations", cookie).status == 401


# -- tickets (section 1)


def _ticket(service: Service, turn: str) -> str:
    reply = service.call("POST", f"/v1/turns/{turn}/tickets")
    assert (reply.status, reply.json["expires_in"]) == (201, 60)
    return str(reply.json["ticket"])


def _status(service: Service, turn: str, ticket: str, last_id: str | None = None, more: str = "") -> int:
    with service.attach(turn, last_id, query=f"?ticket={ticket}{more}", key=None) as stream:
        return stream.status


@pytest.fixture
def done(service: Service) -> str:
    turn = service.start_turn("hello")
    service.settled(turn)
    return turn


def test_a_ticket_lets_an_eventsource_read_its_turn_alone(service: Service, done: str) -> None:
    """Without headers it reads this turn's events, and nothing else: no other turn, route or method (section 1)."""
    other = service.start_turn("hello")
    service.settled(other)
    ticket = _ticket(service, done)
    with service.attach(done, query=f"?ticket={ticket}", key=None) as stream:
        assert stream.read_to_end().text == ANSWER
    fresh = _ticket(service, done)
    assert _status(service, other, fresh) == 401
    for method, path in [
        ("GET", f"/v1/turns/{done}?ticket={fresh}"),
        ("POST", f"/v1/turns/{done}/cancel?ticket={fresh}"),
        ("POST", f"/v1/turns/{done}/tickets?ticket={fresh}"),
        ("GET", f"/v1/conversations?ticket={fresh}"),
    ]:
        assert service.call(method, path, key=None).status == 401, path
    assert service.call("GET", "/v1/conversations", key=fresh).status == 401
    assert _status(service, done, fresh) == 200


@pytest.mark.parametrize("bad", ["", "garbage", "ebt_" + "0" * 64, "%00", "a" * 5000])
def test_a_made_up_ticket_is_401(service: Service, done: str, bad: str) -> None:
    """401, also for an EventSource (R6)."""
    assert _status(service, done, bad) == 401


def test_a_used_ticket_wants_an_id_of_its_turn(service: Service, done: str) -> None:
    """Once an event with an id was sent, only a cursor of this turn comes back in, by header or query (section 1)."""
    other = service.stream("hello").read_to_end()
    ticket = _ticket(service, done)
    with service.attach(done, query=f"?ticket={ticket}", key=None) as stream:
        first = stream.read_to_end().events[0].id
    assert _status(service, done, ticket) == 401
    for wrong in ("garbage", other.last_id, "turn_none-1-1", "*"):
        assert _status(service, done, ticket, wrong) == 401, wrong
    assert _status(service, done, ticket, more="&from=snapshot") == 401
    assert _status(service, done, ticket, first) == 200
    assert _status(service, done, ticket, more=f"&last_event_id={first}") == 200
    assert _status(service, done, ticket, stream.last_id) == 204


def test_a_ticket_may_connect_again_until_an_event_was_sent(service: Service) -> None:
    """A connection that broke before its first event costs no ticket, also after the 60 s (section 1)."""
    conversation = service.conversation()
    first = service.start_turn("hang", conversation)
    waiting = service.start_turn("hello", conversation, on_busy="enqueue")
    ticket = _ticket(service, waiting)
    with service.attach(waiting, query=f"?ticket={ticket}", key=None) as stream:
        stream.wait_for("queued")
    _age_tickets(service, seconds=120)
    with service.attach(waiting, query=f"?ticket={ticket}", key=None) as stream:
        stream.wait_for("queued")
        service.call("POST", f"/v1/turns/{first}/cancel")
        assert stream.read_to_end().text == ANSWER
    assert _status(service, waiting, ticket) == 401


def _age_tickets(service: Service, seconds: int) -> None:
    with service.database() as database:
        database.execute("UPDATE tickets SET created_at = created_at - ?", (seconds * 1000,))


def test_the_first_connect_must_come_within_a_minute(service: Service, done: str) -> None:
    """59 s later it is good, 61 s later it is not (section 1)."""
    ticket = _ticket(service, done)
    _age_tickets(service, 61)
    assert _status(service, done, ticket) == 401
    ticket = _ticket(service, done)
    _age_tickets(service, 58)
    assert _status(service, done, ticket) == 200


def test_a_ticket_ends_15_minutes_after_its_turn(service: Service, done: str) -> None:
    """Then also an id of the turn is 401; before that it is not (section 1)."""
    ticket = _ticket(service, done)
    with service.attach(done, query=f"?ticket={ticket}", key=None) as stream:
        first = stream.read_to_end().events[0].id
    wait_until(lambda: _used(service, done), what="the ticket's use in the store")
    for minutes, expected in ((14, 200), (16, 401)):
        with service.database() as database:
            ended = int(time.time() * 1000) - minutes * MINUTE
            database.execute("UPDATE turns SET ended_at = ? WHERE id = ?", (ended, done))
        assert _status(service, done, ticket, first) == expected


def _used(service: Service, turn: str) -> bool:
    with service.database() as database:
        rows = database.execute("SELECT used_at FROM tickets WHERE turn_id = ?", (turn,)).fetchall()
    return all(row[0] is not None for row in rows)


def test_a_deleted_conversation_takes_its_tickets_along(service: Service) -> None:
    """A ticket opens nothing that its owner can no longer see (A2)."""
    conversation = service.conversation()
    turn = service.start_turn("hello", conversation)
    service.settled(turn)
    ticket = _ticket(service, turn)
    service.call("DELETE", f"/v1/conversations/{conversation}")
    assert _status(service, turn, ticket) in {401, 404}


# -- pages of elsewhere (A3)

LOOKALIKES = [
    "https://evil.example",
    "null",
    "http://app.example",
    f"{PAGE}.evil.example",
    f"{PAGE}:8443",
    "https://xapp.example",
    f"{PAGE}/",
    "HTTPS://APP.EXAMPLE.evil",
]


def _cors(reply: Reply) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


def test_the_named_origin_may_call_with_credentials(service: Service) -> None:
    """Exactly it, and with the headers that the contract uses (A3)."""
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key, last-event-id, traceparent",
    }
    preflight = service.call("OPTIONS", "/v1/conversations", headers=asked, key=None)
    assert preflight.status == 200
    assert _cors(preflight)["access-control-allow-origin"] == PAGE
    assert _cors(preflight)["access-control-allow-credentials"] == "true"
    reply = service.call("GET", "/v1/conversations", headers={"Origin": PAGE})
    assert _cors(reply)["access-control-allow-origin"] == PAGE
    refused = service.call("GET", "/v1/conversations", headers={"Origin": PAGE}, key=None)
    assert (refused.status, _cors(refused)["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[1]"])
@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/conversations/c/turns", "/v1/turns/t/approvals/a"])
def test_who_may_not_come_in_is_told_nothing_about_a_body(service: Service, path: str, body: bytes) -> None:
    """Default deny comes first: 401 whatever the body is (A1)."""
    for key in (None, "eb_wrong"):
        refused = service.call("POST", path, body, key=key)
        assert (refused.status, refused.code) == (401, "unauthenticated")
    assert service.call("POST", path, body).status in (404, 422)


@pytest.mark.parametrize("origin", LOOKALIKES)
def test_no_other_origin_gets_a_cors_header(service: Service, done: str, origin: str) -> None:
    """Evil, null and look-alikes get no allow-origin, on preflights, answers, refusals and streams (A3)."""
    asked = {"Origin": origin, "Access-Control-Request-Method": "GET"}
    replies = [
        service.call("OPTIONS", "/v1/conversations", headers=asked, key=None),
        service.call("GET", "/v1/conversations", headers={"Origin": origin}),
        service.call("GET", "/v1/conversations", headers={"Origin": origin}, key=None),
        service.call("GET", "/livez", headers={"Origin": origin}, key=None),
    ]
    for reply in replies:
        assert not _cors(reply)
    assert (replies[0].status, replies[0].code) == (403, "forbidden")
    with service.attach(done, headers={"Origin": origin}) as stream:
        assert not [name for name in stream.headers if name.startswith("access-control-")]


def test_addresses_are_counted_as_a_trusted_proxy_tells_them(service: Service) -> None:
    """`turns_per_address` holds for the address behind the proxy, and each address has its own (H5, section 8)."""
    turns = [service.start_turn("hang", headers={"X-Forwarded-For": "192.0.2.1"}) for _ in range(6)]
    for forwarded in ("192.0.2.1", "203.0.113.9, 192.0.2.1"):
        refused = service.post("hello", headers={"X-Forwarded-For": forwarded})
        assert (refused.status, refused.code) == (429, "over_capacity")
        assert int(refused.headers["retry-after"]) >= 1
    service.settled(service.start_turn("hello", headers={"X-Forwarded-For": "192.0.2.2"}))
    for turn in turns:
        service.call("POST", f"/v1/turns/{turn}/cancel")
        service.settled(turn)


# -- secrets (A4)


def test_no_secret_is_in_the_log_the_metrics_or_a_refusal(
    service: Service, upstream: Upstream, useless: dict[str, dict[str, str]], done: str
) -> None:
    """After keys, cookies and tickets were used well and badly, none of them stands in anything that was written (A4)."""
    assert service.key is not None
    ticket, unused = _ticket(service, done), _ticket(service, done)
    cookie = _signed_in(service).value
    answers: list[bytes] = []
    with service.attach(done, query=f"?ticket={ticket}", key=None) as stream:
        answers.append(stream.read_to_end().raw)
    _status(service, done, ticket)
    answers.append(service.call("GET", f"/v1/turns/{done}/events?ticket={ticket}&ticket={unused}", key=None).body)
    answers.append(service.call("GET", f"/v1/turns/{unused}/events?ticket={ticket}", key=None).body)
    answers.append(service.call("GET", f"/v1/conversations?key={service.key}&api_key={service.key}", key=None).body)
    answers.append(service.call("POST", "/v1/session", {"key": service.key, "more": 1}, key=None).body)
    answers.append(service.call("POST", "/v1/session", f'{{"key": "{service.key}"'.encode(), key=None).body)
    answers.append(_with_cookie(service, "POST", "/v1/conversations", cookie, {}).body)
    answers.append(_with_cookie(service, "DELETE", "/v1/session", cookie, Origin=service.url).body)
    answers.append(_with_cookie(service, "GET", "/v1/conversations", cookie).body)
    answers += [service.call("GET", "/v1/conversations", headers=headers, key=None).body for headers in useless.values()]
    answers.append(service.stream("status 401").read_to_end().raw)
    answers.append(service.call("GET", "/metrics").body)
    assert upstream.requests[-1].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    secrets = {service.key, ticket, unused, cookie, UPSTREAM_KEY}
    secrets |= {value.split("=")[-1].split(" ")[-1] for headers in useless.values() for value in headers.values()} - {""}
    written = service.log()
    assert re.search(r'"path":"/v1/turns/[^"?]+/events"', written), "requests are logged, without their query"
    for secret in secrets:
        assert secret not in written
        for answer in answers:
            assert secret.encode() not in answer


def test_a_used_ticket_stays_used_after_a_restart(service: Service, done: str) -> None:
    """Its use is in the store: after a restart it wants an id all the same (section 1)."""
    ticket = _ticket(service, done)
    with service.attach(done, query=f"?ticket={ticket}", key=None) as stream:
        last = stream.read_to_end().last_id
    wait_until(lambda: _used(service, done), what="the ticket's use in the store")
    service.stop()
    service.start()
    assert _status(service, done, ticket) == 401
    assert _status(service, done, ticket, last) in {200, 204}
    doc: dict[str, Any] = service.turn(done)
    assert doc["status"] == "done"
