"""Replay, then live, from one list (PROTOCOL 4, E2, E7): no gap, no repeat, whatever happens between two steps."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.codec import encode
from app.events.content import TurnContent
from app.events.envelope import event_id, frame
from app.events.types import Completion, Event, TextDelta
from app.turn_log.cursor import names_turn, seq_of
from app.turn_log.log import TurnLog, TurnLogs
from app.turn_log.subscription import Subscription

TURN = "turn_1"


def new_log(turn_id: str = TURN, *, epoch: int = 1, max_bytes: int = 16 << 20) -> TurnLog:
    content = TurnContent(turn_id=turn_id, conversation_id="conv_1", message_id="msg_1", profile="default", epoch=epoch)
    return TurnLog(content, max_bytes=max_bytes)


def publish(log: TurnLog, count: int = 1, *, size: int = 0, event: Event | None = None) -> None:
    """Append events the way the recorder does."""
    for _ in range(count):
        one = event or TextDelta(block=1, text=f"<{log.last_seq + 1}>" + "x" * size)
        one.seq, one.ts = log.last_seq + 1, 1
        log.content.apply(one)
        log.append(frame(encode(one), event_id(log.turn_id, log.epoch, one.seq)))
    log.wake()


def seqs(frames: list[bytes]) -> list[int]:
    """The seqs of frames; a snapshot counts as minus its `last_seq`."""
    found = []
    for one in frames:
        id_, data = one.decode().removesuffix("\n\n").split("\n")
        fields = json.loads(data.removeprefix("data: "))
        number = -fields["last_seq"] if fields["type"] == "snapshot" else fields["seq"]
        assert id_ == f"id: {TURN}-1-{abs(number)}"
        found.append(number)
    return found


def everything(subscription: Subscription, *, max_bytes: int = 1 << 20) -> list[int]:
    found: list[int] = []
    while frames := subscription.take(max_bytes):
        found.extend(seqs(frames))
    return found


# -- replay meets live


@pytest.mark.parametrize("history", [0, 1, 3])
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("m", [0, 1, 2, 7])
def test_events_between_any_two_steps_of_a_reader_come_once_and_in_order(history: int, at: int, m: int) -> None:
    """R2 across the seam: m events are published exactly between two steps of attaching and reading."""
    log = new_log()
    publish(log, history)
    woken: list[int] = []
    step = iter(range(10))

    def between() -> None:
        if next(step) == at:
            publish(log, m)

    got: list[int] = []
    between()
    subscription = Subscription(log)
    between()
    subscription.open(lambda: woken.append(1))
    between()
    got += seqs(subscription.take(1))
    between()
    got += seqs(subscription.take())
    between()
    got += seqs(subscription.take())
    before_the_last = len(woken)
    between()
    if at >= 5 and m:
        assert len(woken) > before_the_last, "nobody woke the reader"
    got += everything(subscription)
    assert got == list(range(1, history + m + 1))
    log.end()
    assert subscription.finished


@given(
    st.lists(st.one_of(st.integers(0, 5), st.sampled_from(["take", "take_all", "leave"])), max_size=40), st.integers(0, 3)
)
def test_a_viewer_that_leaves_and_resumes_at_random_sees_every_event_once(plan: list[int | str], replay: int) -> None:
    """R2, R4: whatever the mix of publishing, reading by pieces and coming back with the last id, nothing is missing."""
    log = new_log()
    got: list[int] = []
    subscription = Subscription(log)
    for move in plan:
        match move:
            case int(count):
                publish(log, count)
            case "take":
                got += seqs(subscription.take(1))
            case "take_all":
                got += everything(subscription)
            case "leave":
                subscription = Subscription(log, cursor=event_id(TURN, 1, got[-1]) if got else None)
    got += everything(subscription)
    assert got == list(range(1, log.last_seq + 1))


@given(
    max_bytes=st.integers(400, 4_000),
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=60),
    lag=st.integers(1, 20),
)
def test_trimming_gives_a_snapshot_that_joins_exactly_what_follows(max_bytes: int, sizes: list[int], lag: int) -> None:
    """R3, R4: a reader that falls out of the window gets one snapshot and goes on after it; text is never lost."""
    log = new_log(max_bytes=max_bytes)
    reader = Subscription(log)
    text, seq = "", 0

    def read() -> None:
        nonlocal text, seq
        while frames := reader.take(300):
            for one in frames:
                fields = json.loads(one.decode().split("data: ", 1)[1])
                if fields["type"] == "snapshot":
                    assert fields["last_seq"] > seq
                    text, seq = "".join(b["text"] for b in fields["blocks"]), fields["last_seq"]
                else:
                    assert fields["seq"] == seq + 1
                    text, seq = text + fields["text"], fields["seq"]

    for place, size in enumerate(sizes):
        publish(log, size=size)
        assert log.size <= max_bytes or log.last_seq - log.floor == 1, "only a single frame may be larger than the limit"
        if place % lag == lag - 1:
            read()
    read()
    assert seq == log.last_seq
    assert text == log.content.text


def test_ring_overflow_is_told_by_a_snapshot() -> None:
    """R3: window of about 100, cursor 1, head 500: first a snapshot whose `last_seq` is 500, then live."""
    log = new_log(max_bytes=100 * 150)
    publish(log, 500)
    assert 1 < log.floor < 500
    subscription = Subscription(log, cursor=event_id(TURN, 1, 1))
    assert everything(subscription) == [-500]
    publish(log, 2)
    assert everything(subscription) == [501, 502]
    assert subscription.snapshots == 1


# -- cursors


@pytest.mark.parametrize(
    "cursor",
    [
        "", "x", "-", "--", "turn_1", "turn_1-1", "turn_1-1-", "turn_1--5", "turn_1-1-5-1", "turn_1-1-5 ", " turn_1-1-5",
        "turn_1-1-5\n", "turn_1-1--5", "turn_1-1-+5", "turn_1-1-5.0", "turn_1-1-٥", "turn_1-١-5", "turn_1-1-" + "9" * 20,
        "turn_2-1-5", "TURN_1-1-5", "turn_1-0-5", "turn_1-2-5", "turn_1-1-11", "turn_1-1-999", "\x00", "turn_1-1-5\x00",
        "ü" * 500, "9" * 5000, "turn_1-1-0x5", "../turn_1-1-5",
    ],
)  # fmt: skip
def test_a_cursor_that_cannot_be_served_becomes_one_snapshot(cursor: str) -> None:
    """R3: garbage, another turn's, an older or later epoch, from the future: one snapshot, then live; never an error."""
    log = new_log()
    publish(log, 10)
    subscription = Subscription(log, cursor=cursor)
    assert everything(subscription) == [-10]
    publish(log)
    assert everything(subscription) == [11]


def test_an_older_epochs_cursor_is_not_served_even_if_its_seq_is_known() -> None:
    """R3, E7: after a take-over the same seq has other bytes."""
    log = new_log(epoch=3)
    publish(log, 5)
    assert seq_of("turn_1-3-4", turn_id=TURN, epoch=3) == 4
    for cursor in ("turn_1-2-4", "turn_1-1-5"):
        assert seq_of(cursor, turn_id=TURN, epoch=3) is None
        assert names_turn(cursor, TURN)
        [first] = Subscription(log, cursor=cursor).take()
        assert b'"type":"snapshot"' in first
    assert not names_turn("turn_2-3-4", TURN)


@given(st.text(max_size=80))
def test_any_text_is_a_cursor_or_none(cursor: str) -> None:
    """R3: no text raises, and only an exact id of this turn and epoch is taken."""
    seq = seq_of(cursor, turn_id=TURN, epoch=1)
    assert seq is None or cursor.startswith(f"{TURN}-")


@given(st.integers(0, 10))
def test_every_known_cursor_gets_exactly_the_rest(seq: int) -> None:
    """R2."""
    log = new_log()
    publish(log, 10)
    assert everything(Subscription(log, cursor=event_id(TURN, 1, seq))) == list(range(seq + 1, 11))


def test_a_snapshots_id_is_a_good_cursor() -> None:
    """PROTOCOL 3, snapshot: resuming with its id gives what came after it."""
    log = new_log()
    publish(log, 4)
    [first] = Subscription(log, from_snapshot=True).take()
    publish(log, 2)
    cursor = first.split(b"\n")[0].removeprefix(b"id: ").decode()
    assert everything(Subscription(log, cursor=cursor)) == [5, 6]


def test_a_snapshot_before_any_event_is_followed_by_all_of_them() -> None:
    """`?from=snapshot` while the turn is queued: `last_seq` 0, then everything."""
    log = new_log()
    log.set_position(2)
    subscription = Subscription(log, from_snapshot=True)
    [first] = subscription.take()
    fields = json.loads(first.decode().split("data: ", 1)[1])
    assert (fields["type"], fields["last_seq"], fields["status"]) == ("snapshot", 0, "queued")
    assert b'"queued"' in subscription.take()[0]
    publish(log, 2)
    assert everything(subscription) == [1, 2]


# -- a replaced answer


def replaced(log: TurnLog) -> None:
    publish(log, event=Completion(status="complete", finish_reason="stop", chars=3, text="new", replaced=True))
    log.drop_before_last()


def test_a_replaced_answer_drops_the_log_before_it() -> None:
    """E2: who watches gets the completion; every later attach gets a snapshot with the new text, never the old one."""
    log = new_log()
    publish(log, 5)
    watching = Subscription(log)
    assert everything(watching) == [1, 2, 3, 4, 5]
    behind = Subscription(log, cursor=event_id(TURN, 1, 2))
    replaced(log)
    assert everything(watching) == [6]
    assert everything(behind) == [-6]
    for cursor in (None, *(event_id(TURN, 1, seq) for seq in range(6))):
        late = Subscription(log, cursor=cursor)
        [first] = late.take()
        fields = json.loads(first.decode().split("data: ", 1)[1])
        assert fields["type"] == "snapshot"
        assert [b["text"] for b in fields["blocks"]] == ["new"]
        assert "<1>" not in first.decode()
        assert everything(late) == []
    assert everything(Subscription(log, cursor=event_id(TURN, 1, 6))) == []


# -- readers, budgets, positions


def test_attaching_to_a_finished_turn_leaves_no_reader_behind() -> None:
    """500 attaches to a finished turn: subscriptions return to 0, whether they read or not."""
    log = new_log()
    publish(log, 3)
    log.end()
    for number in range(500):
        subscription = Subscription(log)
        subscription.open(lambda: None)
        assert log.readers == 1
        if number % 2:
            assert everything(subscription) == [1, 2, 3]
            assert subscription.finished
        subscription.close()
        subscription.close()
    assert log.readers == 0


def test_every_reader_sees_everything() -> None:
    """R4: several viewers do not steal from each other."""
    log = new_log()
    readers = [Subscription(log) for _ in range(3)]
    got: list[list[int]] = [[], [], []]
    for number in range(30):
        publish(log)
        got[number % 3] += everything(readers[number % 3])
    for number, reader in enumerate(readers):
        got[number] += everything(reader)
    assert got == [list(range(1, 31))] * 3


def test_a_reader_that_leaves_while_it_is_woken_disturbs_nobody() -> None:
    """A wake-up may close other readers: the rest are still told."""
    log = new_log()
    woken: list[str] = []
    first, second, third = (Subscription(log) for _ in range(3))
    first.open(lambda: (woken.append("first"), second.close())[0])
    second.open(lambda: (woken.append("second"), first.close())[0])
    third.open(lambda: woken.append("third"))
    publish(log)
    assert "third" in woken
    assert log.readers in {1, 2}


def fill(logs: TurnLogs, name: str, count: int = 10) -> TurnLog:
    content = TurnContent(turn_id=name, conversation_id="conv_1", message_id="msg_1", profile="default")
    log = logs.open(content)
    publish(log, count)
    return log


def test_the_budget_of_all_logs_takes_the_oldest_ended_first() -> None:
    """R4: over `logs_bytes` the log that ended first goes first, a running one last; what is gone is a snapshot."""
    alone = TurnLogs(log_bytes=1 << 20, logs_bytes=1 << 20)
    one = fill(alone, "turn_1").size
    logs = TurnLogs(log_bytes=1 << 20, logs_bytes=int(one * 2.5) + 4 * (alone.size - one))
    running = fill(logs, "turn_0")
    ended = [fill(logs, f"turn_{n}") for n in (1, 2, 3)]
    for place, log in enumerate(ended):
        log.end()
        log.ended_at = (log.ended_at or 0) + place * 0.001
    logs.sweep()
    assert [log.size == 0 for log in (running, *ended)] == [False, True, True, False]
    assert sum(log.size for log in (running, *ended)) <= int(one * 2.5)
    assert len(logs) == 4, "they stay as snapshots"
    [first] = Subscription(ended[0]).take()
    assert b'"type":"snapshot"' in first
    assert everything_of(ended[2]) == 10
    ended[0].saved = True
    fill(logs, "turn_4", 40)
    logs.sweep()
    assert logs.get("turn_1") is None, "what the store has need not stay"
    assert logs.get("turn_2") is not None


def everything_of(log: TurnLog) -> int:
    subscription, count = Subscription(log), 0
    while frames := subscription.take():
        count += len(frames)
    return count


def test_a_log_is_kept_for_fifteen_minutes_after_its_end_and_while_it_is_read() -> None:
    """R4: not less, and nobody is cut off who is still reading."""
    logs = TurnLogs(log_bytes=1 << 20, logs_bytes=1 << 20)
    young, old, read = fill(logs, "turn_1"), fill(logs, "turn_2"), fill(logs, "turn_3")
    for log, age in ((young, 14 * 60), (old, 16 * 60), (read, 16 * 60)):
        log.end()
        assert log.ended_at is not None
        log.ended_at -= age
    wake: Callable[[], None] = lambda: None  # noqa: E731
    read.add_reader(wake)
    logs.sweep()
    assert [logs.get(f"turn_{n}") is not None for n in (1, 2, 3)] == [True, False, True]
    read.remove_reader(wake)
    logs.sweep()
    assert logs.get("turn_3") is None


def test_the_place_in_the_queue_is_told_when_it_changes_and_never_after_the_start() -> None:
    """PROTOCOL 3, queued: no id, no seq, not in the log, before `turn_started`."""
    log = new_log()
    subscription = Subscription(log)
    told: list[int] = []
    subscription.open(lambda: told.append(1))
    for position in (3, 3, 2, 1):
        log.set_position(position)
        for one in subscription.take():
            assert one == b'data: {"type":"queued","position":%d}\n\n' % position
        assert subscription.take() == []
    assert len(told) == 3
    log.set_position(None)
    publish(log, 1)
    log.set_position(4)
    assert seqs(subscription.take()) == [1]
    assert subscription.take() == []
    late = Subscription(log)
    assert seqs(late.take()) == [1]
