"""Conversations, messages and reactions over HTTP (PROTOCOL 1, H1)."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator

import pytest

from tests.plan_by_words import ANSWER, by_words
from tests.service import Reply, Service, wait_until
from tests.upstream import Upstream


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Upstream(by_words) as upstream, Service(upstream) as running:
        yield running


def _put(service: Service, message: str, reaction: object = "like", **more: object) -> Reply:
    return service.call("PUT", f"/v1/messages/{message}/reaction", {"reaction": reaction, **more})


# -- conversations


def test_a_new_conversation_is_201_with_its_location_and_fields(service: Service) -> None:
    """POST answers 201 with the conversation, also without a body; GET shows the same (section 1, H1)."""
    made = service.call("POST", "/v1/conversations", {"title": "Taxes", "profile": "anthropic", "metadata": {"a": [1]}})
    assert made.status == 201
    document = made.json
    assert document.keys() == {"id", "title", "profile", "created_at", "updated_at", "metadata"}
    assert (document["title"], document["profile"], document["metadata"]) == ("Taxes", "anthropic", {"a": [1]})
    assert made.headers["location"] == f"/v1/conversations/{document['id']}"
    assert service.call("GET", made.headers["location"]).json == document
    bare = service.call("POST", "/v1/conversations")
    assert (bare.status, bare.json["title"], bare.json["profile"]) == (201, None, None)


def test_conversations_are_listed_newest_first_in_pages_without_gap(service: Service) -> None:
    """`limit` and `cursor` walk over all, each once, newest first; the last page has no `next_cursor` (section 1, H1)."""
    made = [service.conversation(title=str(number)) for number in range(7)]
    seen: list[str] = []
    page = service.call("GET", "/v1/conversations?limit=3").json
    seen += [item["id"] for item in page["items"]]
    assert len(seen) == 3
    while "next_cursor" in page:
        page = service.call("GET", f"/v1/conversations?limit=3&cursor={page['next_cursor']}").json
        assert len(page["items"]) <= 3
        seen += [item["id"] for item in page["items"]]
    assert seen[:7] == made[::-1]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "cursor=", "cursor=garbage", "cursor=1.%00", "cursor=-1"]
)
@pytest.mark.parametrize("kind", ["conversations", "messages"])
def test_a_page_that_cannot_be_is_422(service: Service, query: str, kind: str) -> None:
    """A limit out of bounds or a made-up cursor is 422 with a stable code and a sentence, not 500 (H1)."""
    path = "/v1/conversations" if kind == "conversations" else f"/v1/conversations/{service.conversation()}/messages"
    reply = service.call("GET", f"{path}?{query}")
    assert (reply.status, reply.code) == (422, "invalid_request")
    assert reply.json["detail"].startswith(query.partition("=")[0] + ": ")


def test_a_deleted_conversation_is_gone_with_all_that_was_in_it(service: Service) -> None:
    """DELETE is 204; after it conversation, turn and message are 404, also for a second DELETE (section 1)."""
    conversation = service.conversation()
    turn = service.settled(service.start_turn("hello", conversation))
    assert service.call("DELETE", f"/v1/conversations/{conversation}").status == 204
    for method, path in [
        ("GET", f"/v1/conversations/{conversation}"),
        ("GET", f"/v1/conversations/{conversation}/messages"),
        ("GET", f"/v1/turns/{turn['id']}"),
        ("GET", f"/v1/messages/{turn['message_id']}"),
        ("DELETE", f"/v1/conversations/{conversation}"),
    ]:
        assert service.call(method, path).code == "not_found", (method, path)


def test_deleting_stops_a_running_turn_first(service: Service) -> None:
    """It ends `cancelled`, then `message_save_failed` `conversation_deleted`, and its viewer is told (section 5)."""
    conversation = service.conversation()
    with service.stream("hang", conversation) as stream:
        stream.wait_for("text_delta")
        assert service.call("DELETE", f"/v1/conversations/{conversation}").status == 204
        stream.read_to_end()
    assert stream.types[-3:] == ["completion", "message_save_failed", "stream_end"]
    assert stream.of("completion")[0]["status"] == "cancelled"
    assert stream.of("message_save_failed")[0]["code"] == "conversation_deleted"


def test_the_active_turn_is_found_while_it_is_open(service: Service) -> None:
    """`active` is 200 with the open turn, and 204 before and after (section 1)."""
    conversation = service.conversation()
    path = f"/v1/conversations/{conversation}/active"
    assert service.call("GET", path).status == 204
    turn = service.start_turn("hang", conversation)
    active = service.call("GET", path)
    assert active.status == 200
    assert active.json["turn_id"] == turn
    assert active.json["events_url"] == f"/v1/turns/{turn}/events"
    assert service.call("POST", active.json["cancel_url"]).status == 202
    service.settled(turn)
    assert service.call("GET", path).status == 204
    assert service.call("GET", "/v1/conversations/conv_none/active").code == "not_found"


# -- turns


def test_a_started_turn_is_202_with_where_to_follow_and_to_stop_it(service: Service) -> None:
    """Without an Accept for a stream: 202, `Location`, and the ids and URLs, which lead to the turn (H2)."""
    conversation = service.conversation()
    for accept in ("application/json", "*/*", ""):
        reply = service.post("hello", conversation, headers={"Accept": accept})
        assert reply.status == 202
        document = reply.json
        assert document.keys() == {"turn_id", "conversation_id", "message_id", "status", "events_url", "cancel_url"}
        assert reply.headers["location"] == f"/v1/turns/{document['turn_id']}"
        assert document["conversation_id"] == conversation
        turn = service.settled(document["turn_id"])
        assert turn["message_id"] == document["message_id"]
        assert service.call("GET", f"/v1/messages/{document['message_id']}").json["text"] == ANSWER
        assert service.call("POST", document["cancel_url"]).status == 200


def test_a_turns_document_tells_everything_so_far(service: Service) -> None:
    """GET shows state, content and ending; tool outputs are whole where events carry a preview (section 1, F4)."""
    turn = service.settled(service.start_turn('call tell {"size": 50000}'))
    assert turn["status"] == "done"
    assert turn["blocks"] == [{"block": 1, "text": "done"}]
    assert turn["terminal"]["type"] == "completion"
    [tool] = turn["tools"]
    assert tool["status"] == "ok"
    assert any("x" * 50_000 in str(value) for value in tool.values())
    with service.attach(turn["id"]) as stream:
        stream.read_to_end()
    end = stream.of("tool_end")[0]
    assert end["truncated"] is True
    assert len(end["preview"].encode()) <= 2048


def test_cancel_is_202_while_stopping_and_200_when_over(service: Service) -> None:
    """A stop is idempotent; it stops the turn, whose document says `cancelled` (section 1)."""
    turn = service.start_turn("silent")
    first = service.call("POST", f"/v1/turns/{turn}/cancel")
    assert (first.status, first.json["turn_id"]) == (202, turn)
    assert service.settled(turn)["terminal"]["finish_reason"] == "cancelled"
    assert service.call("POST", f"/v1/turns/{turn}/cancel").status == 200
    assert service.call("POST", "/v1/turns/turn_none/cancel").code == "not_found"


# -- messages


def test_messages_come_oldest_first_in_pages(service: Service) -> None:
    """The history alternates user and assistant in order; pages neither skip nor repeat (section 1, H1)."""
    conversation = service.conversation()
    for number in range(3):
        service.settled(service.start_turn(f"input {number}", conversation))
    whole = service.messages(conversation)
    assert [message["role"] for message in whole] == ["user", "assistant"] * 3
    assert [message["text"] for message in whole[::2]] == ["input 0", "input 1", "input 2"]
    required = {"id", "conversation_id", "turn_id", "role", "status", "text", "blocks", "tools", "extras", "created_at"}
    assert all(required <= message.keys() for message in whole)
    seen, cursor = [], ""
    for _ in range(3):
        page = service.call("GET", f"/v1/conversations/{conversation}/messages?limit=2{cursor}").json
        seen += page["items"]
        cursor = f"&cursor={page.get('next_cursor')}"
    assert "next_cursor" not in page
    assert seen == whole


def test_the_users_message_is_there_before_the_reply(service: Service) -> None:
    """While the turn runs the history has the input alone; the reply joins it at its save (section 1)."""
    conversation = service.conversation()
    turn = service.start_turn("hang", conversation)
    wait_until(lambda: len(service.messages(conversation)) == 1, what="the input in the history")
    message_id = service.turn(turn)["message_id"]
    assert service.call("GET", f"/v1/messages/{message_id}").code == "message_not_saved"
    service.call("POST", f"/v1/turns/{turn}/cancel")
    service.settled(turn)
    assert [(m["role"], m["status"]) for m in service.messages(conversation)] == [
        ("user", "complete"),
        ("assistant", "cancelled"),
    ]


def test_a_message_has_its_text_as_harmless_html(service: Service) -> None:
    """`html` is rendered and sanitised: what is no markdown of ours is text, and no script survives (section 1)."""
    conversation = service.conversation()
    text = "**bold** <script>alert(1)</script> <img src=x onerror=alert(1)> [a](javascript:alert(1))"
    service.settled(service.start_turn(text, conversation))
    [user, reply] = service.messages(conversation)
    html = service.call("GET", f"/v1/messages/{user['id']}").json["html"]
    assert "<strong>bold</strong>" in html
    assert "<script" not in html
    assert "<img" not in html
    assert 'href="javascript' not in html
    assert service.call("GET", f"/v1/messages/{reply['id']}").json["html"].strip() == f"<p>{ANSWER}</p>"
    assert service.call("GET", "/v1/messages/msg_none").code == "not_found"


def test_input_of_parts_keeps_its_parts(service: Service) -> None:
    """Input may be a list of text and pictures; the history shows the text and the parts (H1)."""
    conversation = service.conversation()
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.png"}},
    ]
    service.settled(service.start_turn(parts, conversation))
    user = service.messages(conversation)[0]
    assert user["text"] == "what is this?"
    assert user["parts"] == parts


# -- reactions


def test_a_reaction_is_kept_changed_and_taken_back(service: Service) -> None:
    """One for each user and message: a second PUT replaces the first, DELETE takes it back, twice is fine (section 1)."""
    conversation = service.conversation()
    message = service.settled(service.start_turn("hello", conversation))["message_id"]
    assert _put(service, message).json == {"reaction": "like"}
    assert _put(service, message, "dislike", comment="no").json == {"reaction": "dislike", "comment": "no"}
    assert service.call("GET", f"/v1/messages/{message}").json["reaction"] == "dislike"
    assert service.messages(conversation)[1]["reaction"] == "dislike"
    with service.database() as database:
        assert database.execute("SELECT count(*) FROM reactions WHERE message_id = ?", (message,)).fetchone() == (1,)
    for _ in range(2):
        assert service.call("DELETE", f"/v1/messages/{message}/reaction").status == 204
    assert "reaction" not in service.call("GET", f"/v1/messages/{message}").json


def test_a_message_takes_a_reaction_only_once_it_is_saved(service: Service) -> None:
    """Before `message_saved` it is 404 `message_not_saved`; a cancelled message takes reactions (section 1)."""
    turn = service.start_turn("hang")
    message = service.turn(turn)["message_id"]
    early = _put(service, message)
    assert (early.status, early.code) == (404, "message_not_saved")
    late = service.call("DELETE", f"/v1/messages/{message}/reaction")
    assert (late.status, late.code) == (404, "message_not_saved")
    service.call("POST", f"/v1/turns/{turn}/cancel")
    service.settled(turn)
    assert _put(service, message).status == 200


def test_apologies_and_user_messages_take_no_reaction(service: Service) -> None:
    """Both are 409 `not_reactable`; a message that is not there 404 (section 1)."""
    conversation = service.conversation()
    apology = service.settled(service.start_turn("status 400", conversation))["message_id"]
    assert service.call("GET", f"/v1/messages/{apology}").json["status"] == "apology"
    user = service.messages(conversation)[0]["id"]
    for message in (apology, user):
        assert (_put(service, message).status, _put(service, message).code) == (409, "not_reactable")
    assert _put(service, "msg_none").code == "not_found"


@pytest.mark.parametrize("body", [{"reaction": "love"}, {}, {"reaction": "like", "stars": 5}, {"reaction": 1}, []])
def test_a_reaction_that_cannot_be_is_422(service: Service, body: object) -> None:
    """Only `like` and `dislike`, and no other field (section 1, H1)."""
    reply = service.call("PUT", "/v1/messages/msg_1/reaction", body)
    assert (reply.status, reply.code) == (422, "invalid_request")


# -- limits and refusals


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{bad", "body: it is not valid JSON."),
        (b"\xff\xfe", "body: it is not valid JSON."),
        (b"[]", "body: it must be an object."),
        (b"null", "body: it must be an object."),
        (b"{}", "input: it is required."),
        (b'{"input": ""}', "input: it must not be empty."),
        (b'{"input": " \\n"}', "input: it must not be empty."),
        (b'{"input": 5}', "input: it must be text or a list of parts."),
        (b'{"input": null}', "input: it must be text or a list of parts."),
        (b'{"input": []}', "input: it must have at least 1 item."),
        (b'{"input": [{"type": "text", "text": ""}]}', "input.0.text: it must not be empty."),
        (b'{"input": [{"type": "audio"}]}', "input.0: its type must be one of 'text', 'image_url'."),
        (
            b'{"input": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}',
            "input.0.image_url.url: it must be an http, https or data:image URL.",
        ),
        (b'{"input": "a", "on_busy": "wait"}', "on_busy: it must be 'reject', 'enqueue' or 'interrupt'."),
        (b'{"input": "a", "on_disconnect": 1}', "on_disconnect: it must be 'continue' or 'cancel'."),
        (b'{"input": "a", "metadata": []}', "metadata: it must be an object."),
        (b'{"input": "a", "metadata": {"a": NaN}}', "body: NaN and infinite numbers are not JSON."),
        (
            b'{"input": "a", "metadata": {"a": ' + b"[" * 70 + b"]" * 70 + b"}}",
            "body: it is nested more than 64 levels deep.",
        ),
        (b'{"input": "a", "metadata": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}", "body: it is not valid JSON."),
        (b'{"input": "a", "profile": ""}', "profile: it must have at least 1 character."),
        (b'{"input": "a", "modle": "x"}', "modle: there is no such field."),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_body_that_cannot_be_used_is_422_with_one_clear_sentence(service: Service, body: bytes, sentence: str) -> None:
    """Bad JSON or fields: 422 `invalid_request`, the field named as the client wrote it (H1)."""
    reply = service.call("POST", "/v1/conversations/conv_1/turns", body)
    assert (reply.status, reply.code) == (422, "invalid_request")
    assert reply.json["detail"] == sentence


def test_a_body_of_another_type_is_422(service: Service) -> None:
    """A form or an untyped body is told that JSON is wanted (H1)."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = service.call("POST", "/v1/conversations/conv_1/turns", b"input=a", headers=headers)
    assert (reply.status, reply.code) == (422, "invalid_request")
    assert "Content-Type: application/json" in reply.json["detail"]


def test_lone_surrogates_in_an_input_become_replacement_characters(service: Service) -> None:
    """What JSON can say and UTF-8 cannot is U+FFFD from the edge on, in title, metadata and input (F4)."""
    made = service.call("POST", "/v1/conversations", b'{"title": "a\\ud800", "metadata": {"k\\udfff": "\\ud800"}}')
    assert made.status == 201
    assert (made.json["title"], made.json["metadata"]) == ("a\ufffd", {"k\ufffd": "\ufffd"})
    path = f"/v1/conversations/{made.json['id']}/turns"
    started = service.call("POST", path, b'{"input": "x\\ud800y \\ud83d\\ude00", "metadata": {"m": "\\ud800"}}')
    assert started.status == 202
    service.settled(started.json["turn_id"])
    assert service.messages(made.json["id"])[0]["text"] == "x\ufffdy \U0001f600"


def test_an_unknown_profile_is_404(service: Service) -> None:
    """For a conversation and for a turn, with its name (section 1)."""
    made = service.call("POST", "/v1/conversations", {"profile": "nobody"})
    assert (made.status, made.code) == (404, "unknown_profile")
    turn = service.post("hello", profile="nobody")
    assert (turn.status, turn.code) == (404, "unknown_profile")
    assert "nobody" in turn.json["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/conversations", "GET, POST"),
        ("POST", "/v1/conversations/conv_1", "DELETE, GET"),
        ("POST", "/v1/conversations/conv_1/messages", "GET"),
        ("GET", "/v1/conversations/conv_1/turns", "POST"),
        ("DELETE", "/v1/turns/turn_1", "GET"),
        ("GET", "/v1/turns/turn_1/cancel", "POST"),
        ("GET", "/v1/messages/msg_1/reaction", "DELETE, PUT"),
        ("GET", "/v1/session", "DELETE, POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("PROPFIND", "/v1/turns/turn_1", "GET"),
    ],
)
def test_another_method_is_405_and_names_those_that_are(service: Service, method: str, path: str, allowed: str) -> None:
    """405 with every method of the path in `Allow` (section 1)."""
    reply = service.call(method, path)
    assert (reply.status, reply.code, reply.headers["allow"]) == (405, "method_not_allowed", allowed)


@pytest.mark.parametrize("path", ["/v1", "/v1/nothing", "/v2/conversations", "/v1/turns/turn_1/nothing", "/static/../app"])
def test_another_path_is_a_404_problem(service: Service, path: str) -> None:
    """A path that is not there is `not_found` as problem+json (H1)."""
    assert service.call("GET", path).status == 404


def _begun_request(service: Service, *headers: tuple[str, str]) -> http.client.HTTPConnection:
    """A POST whose headers are sent, and whose body the test sends as it likes."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    connection.putrequest("POST", "/v1/conversations/conv_1/turns")
    for header in (("Content-Type", "application/json"), *headers):
        connection.putheader(*header)
    connection.endheaders()
    return connection


def test_a_body_over_the_limit_is_413_before_it_is_read(service: Service) -> None:
    """Over 1 MiB by Content-Length: 413 `too_large` without a byte of it; exactly 1 MiB is read (H1)."""
    body = b'{"input": "a"}'
    most = body + b" " * (1_048_576 - len(body))
    assert service.call("POST", "/v1/conversations/conv_1/turns", most).code == "not_found"
    with contextlib.closing(_begun_request(service, ("Content-Length", "1048577"))) as connection:
        with connection.getresponse() as answer:
            assert (answer.status, json.load(answer)["code"]) == (413, "too_large")


def test_a_chunked_body_over_the_limit_is_413_without_a_content_length(service: Service) -> None:
    """The limit counts what arrives, whatever was announced (H1)."""
    with contextlib.closing(_begun_request(service, ("Transfer-Encoding", "chunked"))) as connection:
        for _ in range(17):
            connection.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        with connection.getresponse() as answer:
            assert (answer.status, json.load(answer)["code"]) == (413, "too_large")


def test_more_than_100000_characters_are_413(service: Service) -> None:
    """The limit counts characters, over all text parts together; exactly 100,000 are taken (H1)."""
    assert service.post("é" * 100_001).code == "too_large"
    half = {"type": "text", "text": "a" * 50_001}
    assert (service.post([half, half]).status, service.post([half, half]).code) == (413, "too_large")
    service.settled(service.start_turn("é" * 100_000))


def test_no_refusal_of_these_was_told_with_a_trace(service: Service) -> None:
    """Bad input is no error of the service: nothing above logged a trace or an error line."""
    assert "Traceback" not in service.log()
    assert '"level":"error"' not in service.log()
