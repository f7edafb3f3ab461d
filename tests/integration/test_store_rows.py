"""What the aggregates promise, the same on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncConnection

from app.ids import new_id
from app.store import approvals, conversations, idempotency, journal, keys, ledger, messages, reactions, turns
from app.store.columns import from_json, to_json, to_text
from app.store.engine import Store
from app.store.errors import Conflict, Fenced
from app.store.messages import Message
from tests.stores import anyio_backend, conversation, postgres, postgres_url, store, store_url, turn

__all__ = ["anyio_backend", "postgres", "postgres_url", "store", "store_url"]
pytestmark = pytest.mark.anyio
T = TypeVar("T")

OWNER = {"tenant": "", "user_id": "ann"}


async def write(store: Store, op: Callable[..., Awaitable[T]], *args: object, **named: object) -> T:
    return await store.write(lambda conn: op(conn, *args, **named))


async def read(store: Store, op: Callable[..., Awaitable[T]], *args: object, **named: object) -> T:
    return await store.read(lambda conn: op(conn, *args, **named))


def message(name: str = "msg_1", *, turn_id: str = "turn_1", place: int = 2, **more: object) -> Message:
    values: dict[str, object] = {
        "id": name,
        "conversation_id": "conv_1",
        "turn_id": turn_id,
        "place": place,
        "role": "user",
        "status": "complete",
        "text": "hello",
        "content": [{"type": "text", "text": "hello"}],
        "model_messages": [{"role": "user", "content": "hello"}],
        "created_at": 1000,
    } | more
    return Message(**values)  # type: ignore[arg-type]  # each test names columns as it needs


@pytest.fixture
async def started(store: Store) -> Store:
    """A store with one conversation and one queued turn."""
    await write(store, conversations.insert, conversation())
    await write(store, turns.insert, turn())
    return store


# Conversations


async def test_a_conversation_comes_back_as_it_was_stored(store: Store) -> None:
    """All columns, JSON included."""
    row = conversation(title="Tea", profile="default", metadata={"a": [1, None, "ü"]})
    await write(store, conversations.insert, row)
    assert await read(store, conversations.get, "conv_1", **OWNER) == row


async def test_a_conversation_is_found_by_its_owner_only(store: Store) -> None:
    """Another user, another tenant and an id that cannot be one find nothing (A2)."""
    await write(store, conversations.insert, conversation())
    assert await read(store, conversations.get, "conv_1", tenant="", user_id="bob") is None
    assert await read(store, conversations.get, "conv_1", tenant="t", user_id="ann") is None
    assert await read(store, conversations.get, "conv_1\x00", **OWNER) is None
    assert await read(store, conversations.get, "conv_\ud800", **OWNER) is None


async def test_pages_show_each_conversation_once_newest_first(store: Store) -> None:
    """Rows of the same millisecond are neither lost nor shown twice at a page's edge."""
    rows = [conversation(f"c{n}", at=1000 + n // 3) for n in range(10)]
    for row in [*rows, conversation("other", user_id="bob")]:
        await write(store, conversations.insert, row)
    seen: list[str] = []
    before: tuple[int, str] | None = None
    while page := await read(store, conversations.list_page, **OWNER, limit=4, before=before):
        seen += [row.id for row in page]
        before = (page[-1].created_at, page[-1].id)
    assert seen == [f"c{n}" for n in reversed(range(10))]


async def test_titles_and_times_change(store: Store) -> None:
    """`set_title` sets and clears; `touch` never goes back in time."""
    await write(store, conversations.insert, conversation())
    await write(store, conversations.set_title, "conv_1", title="New")
    await write(store, conversations.touch, "conv_1", updated_at=5000)
    await write(store, conversations.touch, "conv_1", updated_at=3000)
    row = await read(store, conversations.get, "conv_1", **OWNER)
    assert row is not None
    assert (row.title, row.updated_at, row.created_at) == ("New", 5000, 1000)


async def test_deleting_a_conversation_deletes_all_that_belongs_to_it(started: Store) -> None:
    """Turns, messages, journal, approvals, reactions and tickets are gone; the other conversation's are not."""
    await write(started, conversations.insert, conversation("conv_2"))
    await write(started, turns.insert, turn("turn_2", conversation_id="conv_2"))
    for n, conv in (("1", "conv_1"), ("2", "conv_2")):
        await write(started, messages.insert, message(f"msg_{n}", turn_id=f"turn_{n}", conversation_id=conv))
        await write(started, journal.append, f"turn_{n}", n=0, epoch=1, kind="events", body=[])
        approval = approvals.Approval(id=f"apr_{n}", turn_id=f"turn_{n}", tool_call_id="call", expires_at=1)
        await write(started, approvals.insert, approval)
        await write(started, reactions.put, message_id=f"msg_{n}", user_id="ann", reaction="like", comment=None, at=1)
        await write(
            started, keys.insert_ticket, keys.Ticket(ticket_hash=n, turn_id=f"turn_{n}", user_id="ann", created_at=1)
        )
    assert await write(started, conversations.delete, "conv_1") is True
    assert await write(started, conversations.delete, "conv_1") is False

    async def left(conn: AsyncConnection) -> list[int | None]:
        names = ("turns", "messages", "journal", "approvals", "reactions", "tickets")
        return [await conn.scalar(sql(f"SELECT count(*) FROM {name}")) for name in names]

    assert await started.read(left) == [1] * 6


# Turns


async def test_a_turn_comes_back_as_it_was_stored(store: Store) -> None:
    """All columns; `input` as text or as parts."""
    await write(store, conversations.insert, conversation())
    parts = turn("a", input=[{"type": "text", "text": "hi"}], metadata={"k": 1}, owner="p1", deadline_at=2**40)
    plain = turn("b", place=2, cancel_requested=True, terminal={"type": "error"})
    for row in (parts, plain):
        await write(store, turns.insert, row)
        assert await read(store, turns.get, row.id) == row
    assert await read(store, turns.get, "nobody") is None


async def test_a_turn_needs_its_conversation(store: Store) -> None:
    """Foreign keys hold on both databases."""
    with pytest.raises(Conflict):
        await write(store, turns.insert, turn())


async def test_update_sets_named_columns_of_the_believed_epoch_only(started: Store) -> None:
    """A writer that names an old epoch changes nothing (E7)."""
    assert await write(started, turns.update, "turn_1", if_epoch=1, status="running", input=["x"], metadata=None)
    assert not await write(started, turns.update, "turn_1", if_epoch=2, status="done")
    assert not await write(started, turns.update, "nobody", status="done")
    assert await read(started, turns.get, "turn_1") == replace(turn(), status="running", input=["x"])


async def test_turns_of_a_conversation_are_in_order_of_place(store: Store) -> None:
    """Ended and done turns are not open; ended ones are not settled (H4)."""
    await write(store, conversations.insert, conversation())
    states = ["done", "ended", "waiting", "running", "queued"]
    for place in (3, 1, 2, 5, 4):
        await write(store, turns.insert, turn(f"t{place}", place=place, status=states[place - 1]))
    opened = await read(store, turns.open_in_conversation, "conv_1")
    assert [row.id for row in opened] == ["t3", "t4", "t5"]
    unsettled = await read(store, turns.unsettled_in_conversation, "conv_1")
    assert [row.id for row in unsettled] == ["t2", "t3", "t4", "t5"]
    assert await read(store, turns.count_by_status) == {"ended": 1, "waiting": 1, "running": 1, "queued": 1}
    assert await read(store, turns.count_open_of_user, **OWNER) == 3


async def test_places_are_given_once_even_by_two_stores(store_url: str, store: Store) -> None:
    """Two stores that take turns into one conversation at the same time never give the same place."""
    await write(store, conversations.insert, conversation())
    other = await Store.open(store_url)

    async def accept(by: Store, name: str) -> None:
        async def op(conn: AsyncConnection) -> None:
            place = await turns.next_place(conn, "conv_1")
            await turns.insert(conn, turn(name, place=place))

        await by.write(op)

    await asyncio.gather(*(accept(by, f"{n}-{k}") for n in range(10) for k, by in enumerate((store, other))))
    rows = await read(store, turns.open_in_conversation, "conv_1")
    assert [row.place for row in rows] == list(range(1, 21))
    await other.close()


async def test_one_of_two_claims_wins(store_url: str, started: Store) -> None:
    """Two processes that take over the same turn: one gets it, and the epoch rises by one."""
    other = await Store.open(store_url)
    won = await asyncio.gather(
        write(started, turns.claim, "turn_1", owner="a", epoch_from=1),
        write(other, turns.claim, "turn_1", owner="b", epoch_from=1),
    )
    assert sorted(won) == [False, True]
    row = await read(started, turns.get, "turn_1")
    assert row is not None
    assert (row.owner, row.epoch) == ("a" if won[0] else "b", 2)
    await other.close()


async def test_turns_left_behind_are_those_of_others_and_of_nobody(store: Store) -> None:
    """Done turns and one's own are not among them; a done turn cannot be claimed."""
    await write(store, conversations.insert, conversation())
    for place, (owner, status) in enumerate(
        [("me", "running"), ("you", "running"), (None, "queued"), ("you", "ended"), ("you", "done")], 1
    ):
        await write(store, turns.insert, turn(f"t{place}", place=place, owner=owner, status=status))
    assert [row.id for row in await read(store, turns.left_behind, {"you"})] == ["t2", "t3", "t4"]
    assert [row.id for row in await read(store, turns.left_behind, {"somebody"})] == ["t3"]
    assert await read(store, turns.other_owners, "me") == {"you", None}
    assert await read(store, turns.unsettled_of, {"t1", "t5", "t9"}) == {"t1"}
    assert not await write(store, turns.claim, "t5", owner="me", epoch_from=1)


async def test_the_first_ending_is_the_only_one(started: Store) -> None:
    """Once an ending is stored none can follow, not even in a later epoch (E1)."""
    ending = {"type": "completion", "status": "complete"}
    named = {"last_seq": 7, "ended_at": 5000}
    assert not await write(started, turns.end, "turn_1", epoch=2, terminal={"type": "error"}, **named)
    assert await write(started, turns.end, "turn_1", epoch=1, terminal=ending, **named)
    assert not await write(started, turns.end, "turn_1", epoch=1, terminal={"type": "error"}, **named)
    assert await write(started, turns.claim, "turn_1", owner="b", epoch_from=1)
    assert not await write(started, turns.end, "turn_1", epoch=2, terminal={"type": "error"}, **named)
    assert not await write(started, turns.finish, "turn_1", epoch=1)
    assert await write(started, turns.finish, "turn_1", epoch=2)
    row = await read(started, turns.get, "turn_1")
    assert row is not None
    assert (row.status, row.terminal, row.last_seq, row.owner) == ("done", ending, 7, None)


async def test_a_cancel_is_put_on_record_until_the_turn_has_ended(started: Store) -> None:
    """Asking twice is asking once; after the end it is too late."""
    await write(started, turns.update, "turn_1", owner="me", status="running")
    assert await read(started, turns.stops_asked, "me") == {}
    assert await write(started, turns.request_cancel, "turn_1")
    assert await write(started, turns.request_cancel, "turn_1")
    assert await read(started, turns.stops_asked, "me") == {"turn_1": False}
    assert await read(started, turns.stops_asked, "you") == {}
    await write(started, turns.end, "turn_1", epoch=1, terminal={}, last_seq=1, ended_at=1)
    assert not await write(started, turns.request_cancel, "turn_1")


async def test_the_turns_of_a_conversation_that_is_being_deleted_are_to_stop(started: Store) -> None:
    """It is gone for its user at once, and goes itself when they are done."""
    await write(started, turns.update, "turn_1", owner="me", status="waiting")
    await write(started, conversations.mark_deleting, "conv_1")
    assert await read(started, turns.stops_asked, "me") == {"turn_1": True}
    assert await read(started, conversations.is_deleting, "conv_1")
    assert await read(started, conversations.get, "conv_1", tenant="", user_id="ann") is None
    assert await read(started, conversations.list_page, tenant="", user_id="ann", limit=9) == []
    await write(started, conversations.delete_marked)
    assert await read(started, turns.get, "turn_1") is not None
    await write(started, turns.finish, "turn_1", epoch=1)
    await write(started, conversations.delete_marked)
    assert await read(started, turns.get, "turn_1") is None


async def test_an_admin_sees_the_turns_of_one_tenant_page_by_page(store: Store) -> None:
    """Newest first by id, filtered by status when asked."""
    await write(store, conversations.insert, conversation())
    for place in range(1, 6):
        status = "done" if place % 2 else "running"
        await write(store, turns.insert, turn(f"t{place}", place=place, status=status, tenant="x" if place < 5 else "y"))
    first = await read(store, turns.list_page, tenant="x", limit=3)
    assert [row.id for row in first] == ["t4", "t3", "t2"]
    assert [row.id for row in await read(store, turns.list_page, tenant="x", limit=3, before="t2")] == ["t1"]
    assert [row.id for row in await read(store, turns.list_page, tenant="x", limit=3, status="done")] == ["t3", "t1"]


async def test_an_owner_resumes_disowns_and_settles_in_its_own_epoch_only(started: Store) -> None:
    """A waiting turn runs again with its new deadline; a settled one keeps nothing of its input, and its first ending."""
    assert not await write(started, turns.resumed, "turn_1", epoch=1, deadline_at=9)
    await write(started, turns.update, "turn_1", status="waiting", owner="me")
    assert not await write(started, turns.resumed, "turn_1", epoch=2, deadline_at=9)
    assert await write(started, turns.resumed, "turn_1", epoch=1, deadline_at=9)
    running = replace(turn(), status="running", owner="me", deadline_at=9)
    assert await read(started, turns.get, "turn_1") == running
    assert not await write(started, turns.disown, "turn_1", epoch=2)
    assert await write(started, turns.disown, "turn_1", epoch=1)
    assert await read(started, turns.get, "turn_1") == replace(running, owner=None)
    ending: dict[str, Any] = {"terminal": {"type": "error"}, "last_seq": 4, "ended_at": 8}
    assert not await write(started, turns.settle, "turn_1", epoch=2, **ending)
    assert await write(started, turns.settle, "turn_1", epoch=1, **ending)
    settled = replace(running, owner=None, status="done", input="", **ending)
    assert await read(started, turns.get, "turn_1") == settled
    assert await write(started, turns.settle, "turn_1", epoch=1, terminal={"type": "completion"}, last_seq=5, ended_at=9)
    assert await read(started, turns.get, "turn_1") == replace(settled, last_seq=5)


async def test_a_forgotten_turn_frees_its_idempotency_key(started: Store) -> None:
    """As if it had never been asked for; another turn's key stays."""
    for name in ("turn_1", "turn_9"):
        key = idempotency.IdempotencyKey(
            tenant="", user_id="ann", key=name, conversation_id="conv_1", turn_id=name, body_hash="h", created_at=1
        )
        await write(started, idempotency.insert, key)
    await write(started, turns.delete, "turn_1")
    assert await read(started, turns.get, "turn_1") is None
    assert await read(started, idempotency.get, **OWNER, key="turn_1") is None
    assert await read(started, idempotency.get, **OWNER, key="turn_9") is not None
    await write(started, idempotency.delete, **OWNER, key="turn_9")
    assert await read(started, idempotency.get, **OWNER, key="turn_9") is None


async def test_a_conversation_is_named_once(store: Store) -> None:
    """`name` fills an empty title only."""
    await write(store, conversations.insert, conversation())
    for title in ("", "First", "Second"):
        await write(store, conversations.name, "conv_1", title=title)
    row = await read(store, conversations.get, "conv_1", **OWNER)
    assert row is not None
    assert row.title == "First"


# Journal


async def test_the_journal_comes_back_in_order(started: Store) -> None:
    """Entries are ordered by `n`, whatever the order of writing; a taken `n` is refused."""
    for n, kind, body in ((1, "step", {"a": 1}), (0, "events", [{"type": "x"}]), (2, "result", "text\x00")):
        await write(started, journal.append, "turn_1", n=n, epoch=1, kind=kind, body=body)
    with pytest.raises(Conflict):
        await write(started, journal.append, "turn_1", n=1, epoch=1, kind="step", body={})
    loaded = await read(started, journal.load, "turn_1")
    assert [(e.n, e.kind, e.body, e.epoch) for e in loaded] == [
        (0, "events", [{"type": "x"}], 1),
        (1, "step", {"a": 1}, 1),
        (2, "result", "text\x00", 1),
    ]
    await write(started, journal.delete, "turn_1")
    assert await read(started, journal.load, "turn_1") == []


async def test_an_old_owner_cannot_write_to_the_journal(started: Store) -> None:
    """After a take-over an entry of the old epoch is refused and not stored; so is one of a turn that is gone."""
    await write(started, turns.claim, "turn_1", owner="b", epoch_from=1)
    with pytest.raises(Fenced):
        await write(started, journal.append, "turn_1", n=0, epoch=1, kind="step", body={})
    with pytest.raises(Fenced):
        await write(started, journal.append, "nobody", n=0, epoch=1, kind="step", body={})
    await write(started, journal.append, "turn_1", n=0, epoch=2, kind="step", body={})
    assert [entry.epoch for entry in await read(started, journal.load, "turn_1")] == [2]


async def test_a_journal_can_be_written_at_once_and_again(started: Store) -> None:
    """Entries that are there stay as they are; nothing is stored in the name of an old epoch, nor for no entries."""
    entries = [journal.Entry(n=n, epoch=1, kind="events", body=[{"n": n}], created_at=1000 + n) for n in range(3)]
    await write(started, journal.append_all, "turn_1", epoch=1, entries=[])
    await write(started, journal.append_all, "turn_1", epoch=1, entries=entries[:2])
    await write(started, journal.append_all, "turn_1", epoch=1, entries=[replace(entries[0], body=[]), *entries[1:]])
    assert await read(started, journal.load, "turn_1") == entries
    with pytest.raises(Fenced):
        await write(started, journal.append_all, "turn_1", epoch=2, entries=entries)


async def test_batches_of_turns_that_are_still_owned_are_stored_and_the_others_told(started: Store) -> None:
    """One turn that has changed hands, or is gone, does not hold up the journals of the rest."""
    await write(started, turns.insert, turn("turn_2", place=2))
    await write(started, turns.claim, "turn_2", owner="b", epoch_from=1)
    entry = journal.Entry(n=0, epoch=1, kind="events", body=[], created_at=1)
    batches = [journal.Batch(turn_id=f"turn_{n}", epoch=1, entries=[entry]) for n in (1, 2, 3)]
    assert await write(started, journal.append_batches, batches) == {"turn_2", "turn_3"}
    assert await write(started, journal.append_batches, []) == set()
    assert await read(started, journal.load, "turn_1") == [entry]
    assert await read(started, journal.load, "turn_2") == []


# Messages


async def test_saving_a_message_again_changes_nothing(started: Store) -> None:
    """The second save of an id is fine and leaves the first; another message of the same turn and role is refused."""
    first = message()
    assert await write(started, messages.insert, first) is True
    assert await write(started, messages.insert, message(text="other")) is False
    assert await read(started, messages.get, "msg_1") == first
    with pytest.raises(Conflict):
        await write(started, messages.insert, message("msg_2"))
    with pytest.raises(Conflict):
        await write(started, messages.insert, message("msg_3", turn_id="t", conversation_id="gone"))


async def test_messages_are_listed_oldest_first_by_page(started: Store) -> None:
    """Pages follow the place; history has what a model is shown, before a place, and can be cut at the old end."""
    for n in range(5):
        shown = None if n == 2 else [{"role": "user", "content": str(n)}]
        await write(started, messages.insert, message(f"m{n}", turn_id=f"t{n}", place=n * 2, model_messages=shown))
    first = await read(started, messages.list_page, "conv_1", limit=3)
    assert [row.id for row in first] == ["m0", "m1", "m2"]
    rest = await read(started, messages.list_page, "conv_1", limit=3, after=first[-1].place)
    assert [row.id for row in rest] == ["m3", "m4"]
    remembered = await read(started, messages.history, "conv_1", before_place=8)
    assert [(row.id, row.model_messages) for row in remembered] == [
        (f"m{n}", [{"role": "user", "content": str(n)}]) for n in (0, 1, 3)
    ]
    newest = await read(started, messages.history, "conv_1", before_place=8, limit=2)
    assert [row.id for row in newest] == ["m1", "m3"]
    assert [row.id for row in await read(started, messages.for_turn, "t3")] == ["m3"]


# Approvals


async def test_the_first_answer_to_an_approval_wins(store_url: str, started: Store) -> None:
    """Two answers at the same time: both callers see the same one."""
    await write(started, approvals.insert, approvals.Approval(id="a", turn_id="turn_1", tool_call_id="c", expires_at=9))
    other = await Store.open(store_url)
    seen = await asyncio.gather(
        write(started, approvals.decide, "a", decision="approve", by="ann", comment="ok", at=5),
        write(other, approvals.decide, "a", decision="deny", by="bob", at=6),
    )
    stored = await read(started, approvals.get, "a")
    assert stored is not None
    assert stored.decision in ("approve", "deny")
    assert (stored.decided_by, stored.decided_at) == (("ann", 5) if stored.decision == "approve" else ("bob", 6))
    assert stored in seen
    assert await write(started, approvals.decide, "a", decision="expired", by="system", at=7) == stored
    assert await write(started, approvals.decide, "none", decision="deny", by="ann", at=7) is None
    await other.close()


async def test_only_open_approvals_are_cancelled(started: Store) -> None:
    """An answer that was given stays; the ids of the closed ones are told."""
    for name in ("a", "b", "c"):
        approval = approvals.Approval(id=name, turn_id="turn_1", tool_call_id=name, expires_at=9)
        await write(started, approvals.insert, approval)
    await write(started, approvals.decide, "b", decision="approve", by="ann", at=5)
    assert await write(started, approvals.cancel_open, "turn_1", at=8) == ["a", "c"]
    assert await write(started, approvals.cancel_open, "turn_1", at=9) == []
    rows = await read(started, approvals.for_turn, "turn_1")
    assert [(row.decision, row.decided_by, row.decided_at) for row in rows] == [
        ("cancelled", "system", 8),
        ("approve", "ann", 5),
        ("cancelled", "system", 8),
    ]


# Idempotency keys, reactions


async def test_an_idempotency_key_belongs_to_one_user_and_is_used_once(store: Store) -> None:
    """The same key of another user is another key; a second use is a conflict; old ones are forgotten."""
    row = idempotency.IdempotencyKey(
        tenant="", user_id="ann", key="k", conversation_id="c", turn_id="t", body_hash="h", created_at=100
    )
    await write(store, idempotency.insert, row)
    await write(store, idempotency.insert, replace(row, user_id="bob", created_at=200))
    with pytest.raises(Conflict):
        await write(store, idempotency.insert, replace(row, turn_id="t2"))
    assert await read(store, idempotency.get, **OWNER, key="k") == row
    assert await write(store, idempotency.delete_older_than, 200) == 1
    assert await read(store, idempotency.get, **OWNER, key="k") is None
    assert await read(store, idempotency.get, tenant="", user_id="bob", key="k") is not None


async def test_a_second_reaction_replaces_the_first(started: Store) -> None:
    """One for each user and message; its first moment stays."""
    await write(started, messages.insert, message())
    mine = {"message_id": "msg_1", "user_id": "ann"}
    await write(started, reactions.put, **mine, reaction="like", comment="good", at=10)
    await write(started, reactions.put, **mine, reaction="dislike", comment=None, at=20)
    await write(started, reactions.put, message_id="msg_1", user_id="bob", reaction="like", comment=None, at=20)
    found = await read(started, reactions.for_messages, ["msg_1", "msg_9"], "ann")
    assert found == {"msg_1": reactions.Reaction(**mine, reaction="dislike", created_at=10, updated_at=20)}
    assert await read(started, reactions.for_messages, [], "ann") == {}
    assert await write(started, reactions.delete, **mine) is True
    assert await write(started, reactions.delete, **mine) is False
    with pytest.raises(Conflict):
        await write(started, reactions.put, **mine | {"message_id": "x"}, reaction="like", comment=None, at=1)


# Keys


async def test_revoked_keys_still_count_as_keys(store: Store) -> None:
    """Revoking the last key never opens the service (A1), and ends the sessions made with it."""
    assert await read(store, keys.any_key) is False
    key = keys.ApiKey(id="key_1", key_hash="hash", user_id="ann", role="admin", created_at=1)
    await write(store, keys.insert_key, key)
    await write(
        store, keys.insert_session, keys.BrowserSession(token_hash="s", api_key_id="key_1", created_at=1, expires_at=9)
    )
    assert await read(store, keys.key_by_hash, "hash") == await read(store, keys.key_by_id, "key_1") == key
    assert await read(store, keys.get_session, "s") is not None
    assert await write(store, keys.revoke_key, "key_1", at=5) is True
    assert await write(store, keys.revoke_key, "key_1", at=6) is False
    assert await read(store, keys.any_key) is True
    assert await read(store, keys.list_keys) == [replace(key, revoked_at=5)]
    assert await read(store, keys.get_session, "s") is None
    assert "hash" not in repr(key)


async def test_sessions_and_tickets_come_go_and_expire(started: Store) -> None:
    """A ticket's first use is recorded once; what is over is forgotten when asked."""
    await write(started, keys.insert_key, keys.ApiKey(id="key_1", key_hash="hash", user_id="ann", created_at=1))
    for name, expires in (("a", 10), ("b", 20), ("c", 30)):
        session = keys.BrowserSession(token_hash=name, api_key_id="key_1", created_at=1, expires_at=expires)
        await write(started, keys.insert_session, session)
    assert await write(started, keys.delete_session, "b") is True
    assert await write(started, keys.delete_session, "b") is False
    assert await write(started, keys.delete_sessions_expired, 25) == 1
    assert await read(started, keys.get_session, "c") is not None

    ticket = keys.Ticket(ticket_hash="t", turn_id="turn_1", user_id="ann", created_at=5)
    await write(started, keys.insert_ticket, ticket)
    assert await write(started, keys.mark_used, "t", at=7) is True
    assert await write(started, keys.mark_used, "t", at=8) is False
    assert await read(started, keys.get_ticket, "t") == replace(ticket, used_at=7)
    assert await write(started, keys.delete_tickets_older_than, 6) == 1
    assert await read(started, keys.get_ticket, "t") is None


# The demo's ledger


async def test_books_are_seeded_once(store: Store) -> None:
    """Seeding again, with other rows, changes nothing; a period has both its ends."""
    rows = [
        ledger.Transaction(
            id=f"tx_{n}", user_id="ann", booked_on=f"2026-01-0{n}", description="Tea", category="food", cents=-n * 100
        )
        for n in range(1, 6)
    ]
    assert await write(store, ledger.seed, "ann", rows) is True
    assert await write(store, ledger.seed, "ann", [replace(rows[0], id="tx_9")]) is False
    assert await read(store, ledger.list_transactions, "ann") == rows
    assert await read(store, ledger.list_transactions, "ann", "2026-01-02", "2026-01-04") == rows[1:4]
    assert await read(store, ledger.list_transactions, "bob") == []


async def test_invoice_numbers_rise_by_one_for_each_user_even_by_two_stores(store_url: str, store: Store) -> None:
    """No number twice and none left out, whoever writes at the same time."""
    other = await Store.open(store_url)

    async def create(by: Store, user: str) -> ledger.Invoice:
        return await write(
            by,
            ledger.insert_invoice,
            invoice_id=new_id("inv"),
            user_id=user,
            customer="Müller",
            cents=12_345,
            currency="EUR",
            idempotency_key=new_id("key"),
            created_at=1,
        )

    made = await asyncio.gather(*(create(by, user) for _ in range(6) for by in (store, other) for user in ("ann", "bob")))
    for user in ("ann", "bob"):
        stored = await read(store, ledger.invoices, user)
        assert [row.number for row in stored] == list(range(1, 13))
        assert stored == sorted((row for row in made if row.user_id == user), key=lambda row: row.number)
    assert await read(store, ledger.by_idempotency_key, made[0].user_id, made[0].idempotency_key) == made[0]
    await other.close()


async def test_a_payment_is_found_by_the_key_of_its_call(store: Store) -> None:
    """Only for its own user."""
    payment = ledger.Payment(
        id="pay", user_id="ann", payee="Bob", cents=5, currency="EUR", idempotency_key="t:c", created_at=1
    )
    await write(store, ledger.insert_payment, payment)
    assert await read(store, ledger.payments, "ann") == [payment]
    assert await read(store, ledger.by_idempotency_key, "ann", "t:c") == payment
    assert await read(store, ledger.by_idempotency_key, "bob", "t:c") is None


# Characters

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-16", categories=None) | st.sampled_from("\x00\ud800\udfff")), body=_json)
async def test_any_text_and_any_json_can_be_stored(store: Store, text: str, body: object) -> None:
    """Text comes back as `to_text` says; JSON comes back whole, NUL included."""
    name = new_id("conv")
    row = conversation(name, title=text, metadata={"body": body, "text": text})
    await write(store, conversations.insert, row)
    found = await read(store, conversations.get, name, **OWNER)
    assert found is not None
    assert found.title == to_text(text)
    assert found.metadata is not None
    assert found.metadata["body"] == body
    assert found.metadata["text"].replace("\x00", "\ufffd") == to_text(text)


def test_lone_surrogates_become_replacement_characters_and_pairs_are_joined() -> None:
    """F4, for plain text and for every string in a document, keys too."""
    assert to_text("a\ud800b\ud83d\ude00c\udc00\x00") == "a\ufffdb\U0001f600c\ufffd\ufffd"
    document = {"k\ud800": ["\udc00", {"x": "\ud83d\ude00\x00"}], "n": 1.5, "t": True}
    assert from_json(to_json(document)) == {"k\ufffd": ["\ufffd", {"x": "\U0001f600\x00"}], "n": 1.5, "t": True}
    assert "\x00" not in to_json("\x00")
