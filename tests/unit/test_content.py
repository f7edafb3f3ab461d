"""The fold of a turn's events (PROTOCOL 3 snapshot, E2, E5): a snapshot and what follows it are the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events import codec, content, types
from app.events.content import TurnContent


def empty() -> TurnContent:
    return TurnContent(turn_id="turn_1", conversation_id="conv_1", message_id="msg_1", profile="default")


def folded(events: list[types.Event], into: TurnContent | None = None) -> TurnContent:
    result = into or empty()
    for event in events:
        result.apply(event)
    return result


def snapshot(of: TurnContent, status: str = "running") -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(of.snapshot(status))
    return fields


texts = st.text(st.sampled_from("aé🐤\n"), min_size=1, max_size=5)


@st.composite
def turns(draw: st.DrawFn) -> list[types.Event]:
    """Events in an order that a turn can have, numbered from 1."""
    events: list[types.Event] = []
    block, text_open, tools, asked = 1, False, 0, 0
    for move in draw(st.lists(st.sampled_from("ttttrrbcikpxau"), max_size=30)):
        match move:
            case "t":
                events.append(types.TextDelta(block=block, text=draw(texts)))
                text_open = True
            case "r":
                events.append(types.ReasoningDelta(block=block + text_open, text=draw(texts)))
            case "b" if text_open:
                block, text_open = block + 1, False
            case "c":
                events.append(types.Commentary(text=draw(texts)))
            case "i":
                events.append(types.Image(url="u", alt=draw(texts), width=draw(st.none() | st.integers(1, 9))))
            case "k":
                events.append(types.ActionCard(card_id="k", kind="k", title="t", fields=[], actions=[]))
            case "x":
                events.append(types.AttemptRestarted(attempt=2, reason="r"))
            case "a":
                asked += 1
                events.append(
                    types.ApprovalRequired(
                        approval_id=f"a{asked}", tool_call_id=f"c{tools}", name="n", title="t", prompt="p", expires_at=9
                    )
                )
                if draw(st.booleans()):
                    events.append(types.ApprovalResolved(approval_id=f"a{asked}", decision="approve", by="ann"))
            case "p":
                tools += 1
                events.append(types.ToolStart(tool_call_id=f"c{tools}", name="n", title="t", side_effects="none"))
                if draw(st.booleans()):
                    events.append(types.ToolProgress(tool_call_id=f"c{tools}", fraction=0.5))
                if draw(st.booleans()):
                    events.append(types.ToolEnd(tool_call_id=f"c{tools}", status="ok", duration_ms=1, preview="p"))
                    if text_open:
                        block, text_open = block + 1, False
            case "u":
                events.append(types.Usage(input_tokens=1, output_tokens=2, model="m"))
    for place, event in enumerate(events):
        event.seq, event.ts = place + 1, 1
    return events


class Client:
    """What a client that knows only PROTOCOL 3 makes of the events; it shares nothing with the service."""

    def __init__(self) -> None:
        self.blocks: dict[int, str] = {}
        self.reasoning: list[tuple[int, str]] = []
        self.mark = 0
        self.tools: dict[str, dict[str, Any]] = {}
        self.extras: list[dict[str, Any]] = []
        self.approvals: dict[str, Any] = {}

    def see(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "snapshot":
                self.__init__()  # type: ignore[misc]
                self.blocks = {b["block"]: b["text"] for b in event["blocks"]}
                self.reasoning = [(b["block"], b["text"]) for b in event.get("reasoning", [])]
                self.tools = {t["tool_call_id"]: t for t in event["tools"]}
                self.extras = [{k: v for k, v in e.items() if k != "after_block"} for e in event["extras"]]
                self.approvals = {a["approval_id"]: a.get("decision") for a in event["approvals"]}
            case "text_delta":
                self.blocks[event["block"]] = self.blocks.get(event["block"], "") + event["text"]
            case "reasoning_delta":
                self.reasoning.append((event["block"], event["text"]))
            case "attempt_restarted":
                del self.reasoning[self.mark :]
            case "tool_start":
                self.tools[event["tool_call_id"]] = event
            case "tool_end":
                self.tools[event["tool_call_id"]] = {**self.tools[event["tool_call_id"]], **event}
                self.mark = len(self.reasoning)
            case "image" | "action_card" | "commentary":
                self.extras.append({k: v for k, v in event.items() if k not in {"seq", "ts"}})
            case "approval_required":
                self.approvals[event["approval_id"]] = None
            case "approval_resolved":
                self.approvals[event["approval_id"]] = event["decision"]

    @property
    def thoughts(self) -> str:
        return "".join(text for _, text in self.reasoning)

    def state(self) -> dict[str, Any]:
        return {
            "blocks": self.blocks,
            "tools": {i: (t["name"], t.get("status"), t.get("preview")) for i, t in self.tools.items()},
            "extras": self.extras,
            "approvals": self.approvals,
        }


@given(turns(), st.data())
def test_a_snapshot_and_the_events_after_it_are_the_whole(events: list[types.Event], data: st.DataObject) -> None:
    """E7, R3: join at any point; a client that takes the snapshot and goes on has what one has that saw everything."""
    at = data.draw(st.integers(0, len(events)))
    whole, late = Client(), Client()
    for event in events:
        whole.see(codec.to_fields(event))
    server = folded(events[:at])
    late.see(snapshot(server))
    for event in events[at:]:
        late.see(codec.to_fields(event))
    assert late.state() == whole.state()
    final = Client()
    final.see(snapshot(folded(events[at:], server)))
    assert final.state() == whole.state()
    # What a restart takes back is known to the server as it is to one who watched.
    assert final.thoughts == whole.thoughts


@given(turns())
def test_content_survives_its_document(events: list[types.Event]) -> None:
    """What is stored with the message gives the same snapshot again (R4, in the end from the stored message)."""
    before = folded(events)
    before.outputs = dict.fromkeys(before.tools, "out")
    document = json.loads(codec.encode(before.to_document()))
    after = TurnContent.from_document(
        document, turn_id="turn_1", conversation_id="conv_1", message_id="msg_1", profile="default"
    )
    assert after.snapshot("done") == before.snapshot("done")
    assert after.to_document() == before.to_document()
    assert (after.text, after.chars, after.produced, after.visible) == (
        before.text, before.chars, before.produced, before.visible,
    )  # fmt: skip


@given(turns())
def test_chars_and_text_are_the_deltas(events: list[types.Event]) -> None:
    """E2: the text equals the concatenated deltas; `chars` are its code points."""
    whole = folded(events)
    assert whole.text == "".join(e.text for e in events if isinstance(e, types.TextDelta))
    assert whole.chars == len(whole.text)
    assert whole.last_seq == len(events)


def numbered(*events: types.Event) -> list[types.Event]:
    for place, event in enumerate(events):
        event.seq = place + 1
    return list(events)


def test_a_restart_takes_back_the_reasoning_since_the_last_tool_end_and_no_more() -> None:
    """PROTOCOL 3, attempt_restarted; also where the thinking after the tool has the same block number as before it."""
    tool = types.ToolStart(tool_call_id="c", name="n", title="t", side_effects="none")
    end = types.ToolEnd(tool_call_id="c", status="ok", duration_ms=1)
    whole = folded(
        numbered(
            types.ReasoningDelta(block=1, text="first "),
            types.ReasoningDelta(block=1, text="call"),
            tool,
            end,
            types.ReasoningDelta(block=1, text="failed attempt"),
            types.AttemptRestarted(attempt=2, reason="cut"),
            types.ReasoningDelta(block=1, text=", second call"),
        )
    )
    assert "".join(b["text"] for b in snapshot(whole)["reasoning"]) == "first call, second call"
    assert whole.loose_reasoning


def test_loose_reasoning_is_what_no_tool_has_followed() -> None:
    """What a recovered turn must take back before it makes its model call again."""
    think = types.ReasoningDelta(block=1, text="x")
    tool = types.ToolStart(tool_call_id="c", name="n", title="t", side_effects="none")
    end = types.ToolEnd(tool_call_id="c", status="ok", duration_ms=1)
    assert not folded([]).loose_reasoning
    assert folded([think]).loose_reasoning
    assert not folded([think, tool, end]).loose_reasoning
    assert folded([think, tool, end, think]).loose_reasoning


def test_after_block_says_behind_which_text_a_tool_or_an_extra_stands() -> None:
    """PROTOCOL 3, snapshot: 0 is before any text."""
    whole = folded(
        numbered(
            types.Commentary(text="c"),
            types.TextDelta(block=1, text="a"),
            types.Image(url="u", alt="x"),
            types.ToolStart(tool_call_id="c", name="n", title="t", side_effects="none"),
            types.ToolEnd(tool_call_id="c", status="error", duration_ms=2),
            types.TextDelta(block=2, text="b"),
            types.ActionCard(card_id="k", kind="k", title="t", fields=[], actions=[]),
        )
    )
    fields = snapshot(whole)
    assert [(e["type"], e["after_block"]) for e in fields["extras"]] == [("commentary", 0), ("image", 1), ("action_card", 2)]
    [tool] = fields["tools"]
    assert (tool["after_block"], tool["status"], tool["duration_ms"], tool["name"]) == (1, "error", 2, "n")
    assert not {"type", "seq", "ts"} & set(tool)


@pytest.mark.parametrize(
    ("event", "produced", "visible"),
    [
        (types.TextDelta(block=1, text="a"), True, True),
        (types.Image(url="u", alt="x"), True, True),
        (types.ActionCard(card_id="k", kind="k", title="t", fields=[], actions=[]), True, True),
        (types.Commentary(text="c"), False, True),
        (types.ReasoningDelta(block=1, text="c"), False, False),
        (types.ToolStart(tool_call_id="c", name="n", title="t", side_effects="none"), False, False),
        (types.Notice(level="info", code="c", text="t"), False, False),
        (types.TextDelta(block=1, text=""), False, False),
    ],
    ids=lambda value: getattr(value, "text", "") or type(value).__name__,
)
def test_what_counts_as_produced_and_as_visible(event: types.Event, produced: bool, visible: bool) -> None:
    """E5: text, an image or a card is an answer; commentary is seen, but is none."""
    whole = folded([event])
    assert (whole.produced, whole.visible) == (produced, visible)


def test_a_replaced_answer_is_all_that_is_left_of_the_text() -> None:
    """E2: tools and extras stay, behind no text."""
    whole = folded(
        numbered(
            types.TextDelta(block=1, text="secret"),
            types.ToolStart(tool_call_id="c", name="n", title="t", side_effects="none"),
            types.ToolEnd(tool_call_id="c", status="ok", duration_ms=1),
            types.TextDelta(block=2, text="more"),
            types.Image(url="u", alt="a"),
            types.Completion(status="complete", finish_reason="stop", chars=2, text="ok", replaced=True),
        )
    )
    fields = snapshot(whole, "done")
    assert fields["blocks"] == [{"block": 1, "text": "ok"}]
    assert [t["after_block"] for t in fields["tools"]] == [0]
    assert [e["after_block"] for e in fields["extras"]] == [0]
    assert b"secret" not in whole.snapshot("done")
    assert fields["terminal"]["replaced"] is True


# -- the 4 MiB of a snapshot (F4)

LIMIT = content.MAX_SNAPSHOT_BYTES


def large(*, blocks: list[int], reasoning: int = 0, arguments: int = 0, char: str = "x") -> TurnContent:
    events: list[types.Event] = []
    if reasoning:
        events.append(types.ReasoningDelta(block=1, text=char * reasoning))
    for number in range(arguments):
        call = f"c{number}"
        events += [
            types.ToolStart(tool_call_id=call, name="n", title="t", side_effects="none", arguments={"a": char * 15_000}),
            types.ToolEnd(tool_call_id=call, status="ok", duration_ms=1, preview="p" * 2000),
        ]
    events += [
        types.TextDelta(block=n + 1, text=f"<{n + 1}>" + char * size + f"</{n + 1}>") for n, size in enumerate(blocks)
    ]
    return folded(events)


def test_a_snapshot_that_fits_is_whole() -> None:
    """Nothing is left out below the limit."""
    fields = snapshot(large(blocks=[1000, 1000], reasoning=1000, arguments=2))
    assert "truncated" not in fields
    assert len(fields["blocks"]) == 2
    assert len(fields["reasoning"]) == 1


MIB = 1 << 20


@pytest.mark.parametrize(
    ("parts", "reasoning", "arguments", "blocks"),
    [
        # Without the reasoning it fits: all else stays.
        ({"blocks": [2 * MIB], "reasoning": 3 * MIB, "arguments": 3}, False, True, [1]),
        # The arguments and previews go next.
        ({"blocks": [3 * MIB], "reasoning": 1000, "arguments": 150}, False, False, [1]),
        # Then the oldest block is cut, or goes.
        ({"blocks": [3 * MIB, 2 * MIB], "reasoning": 10, "arguments": 1}, False, False, [1, 2]),
        ({"blocks": [MIB, 3 * MIB, MIB + 5000], "reasoning": 10, "arguments": 1}, False, False, [2, 3]),
    ],
)
def test_what_does_not_fit_a_snapshot_goes_in_the_order_of_the_protocol(
    parts: dict[str, Any], reasoning: bool, arguments: bool, blocks: list[int]
) -> None:
    """F4, PROTOCOL 3: reasoning first, then arguments and previews, then the oldest blocks; within 4 MiB."""
    whole = large(**parts)
    data = whole.snapshot("running")
    fields = json.loads(data)
    assert len(data) <= LIMIT
    assert fields["truncated"] is True
    assert ("reasoning" in fields) == reasoning
    assert all(("arguments" in t) == ("preview" in t) == arguments for t in fields["tools"])
    assert [b["block"] for b in fields["blocks"]] == blocks
    assert fields["blocks"][-1]["text"].endswith(f"</{blocks[-1]}>")
    assert len(fields["tools"]) == parts["arguments"], "the tools themselves stay"
    assert whole.text.endswith("".join(b["text"] for b in fields["blocks"])), "the end of the answer stays, in one piece"


@pytest.mark.parametrize("char", ["x", "\u2028", "🐤", "\x00", "aaa🐤", '"'])
def test_a_snapshot_of_one_huge_block_keeps_its_end(char: str) -> None:
    """Whatever a character takes on the wire: within the limit, not needlessly empty, never cut inside a character."""
    data = large(blocks=[5 * MIB], char=char).snapshot("running")
    fields = json.loads(data)
    assert len(data) <= LIMIT
    [block] = fields["blocks"]
    assert block["text"].endswith("</1>")
    assert len(data) > LIMIT // 8
