"""What a turn has shown so far: the events folded into the form that a `snapshot`, `GET /v1/turns/{id}` and a stored
message share.

Pure: it holds no socket and no storage, and the same events always give the same content.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.events.codec import clean, encode, to_fields
from app.events.types import (
    ActionCard,
    ApprovalRequired,
    ApprovalResolved,
    AttemptRestarted,
    Commentary,
    Completion,
    Error,
    Event,
    Image,
    ReasoningDelta,
    Snapshot,
    TextDelta,
    ToolEnd,
    ToolProgress,
    ToolStart,
    Usage,
)

# 4 MiB for the whole frame (F4), its id and the field names included.
MAX_SNAPSHOT_BYTES = (4 << 20) - 128


class _Block:
    """One block of text; pieces are joined only when someone looks."""

    __slots__ = ("number", "pieces")

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.pieces = [text]

    @property
    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0]


class TurnContent:
    """The fold of one turn's events.

    `blocks` and `reasoning` are text by block, `tools` join start and end by call id, `extras` are images, cards and
    commentary in order. `outputs` holds the whole result of each tool, which no event carries.
    """

    __slots__ = (
        "_reasoning_mark",
        "approvals",
        "blocks",
        "chars",
        "conversation_id",
        "epoch",
        "extras",
        "input_tokens",
        "last_seq",
        "message_id",
        "output_tokens",
        "outputs",
        "profile",
        "reasoning",
        "terminal",
        "tools",
        "turn_id",
    )

    def __init__(
        self, *, turn_id: str, conversation_id: str, message_id: str, profile: str, epoch: int = 1, last_seq: int = 0
    ) -> None:
        self.turn_id = turn_id
        self.conversation_id = conversation_id
        self.message_id = message_id
        self.profile = profile
        self.epoch = epoch
        self.last_seq = last_seq
        self.blocks: list[_Block] = []
        self.reasoning: list[_Block] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.outputs: dict[str, str] = {}
        self.extras: list[dict[str, Any]] = []
        self.approvals: dict[str, dict[str, Any]] = {}
        self.terminal: dict[str, Any] | None = None
        self.input_tokens = 0
        self.output_tokens = 0
        self.chars = 0
        # Where the reasoning was at the last tool's end: its blocks, and the characters of the last of them.
        self._reasoning_mark = (0, 0)

    # -- what is known of it

    @property
    def text(self) -> str:
        """The whole answer so far."""
        return "".join(block.text for block in self.blocks)

    @property
    def produced(self) -> bool:
        """Whether there is text, an image or a card (E5); commentary alone is no answer, nor is white space."""
        said = self.chars > 0 and any(not piece.isspace() for block in self.blocks for piece in block.pieces)
        return said or any(extra["type"] != "commentary" for extra in self.extras)

    @property
    def visible(self) -> bool:
        """Whether a person has seen anything: what was produced, or commentary."""
        return self.chars > 0 or bool(self.extras)

    @property
    def tool_begun(self) -> bool:
        """Whether any tool has begun (X1)."""
        return bool(self.tools)

    @property
    def loose_reasoning(self) -> bool:
        """Whether there is reasoning of a model call that has not led to anything yet."""
        return self._reasoning_place() != self._reasoning_mark

    @property
    def last_block(self) -> int:
        """The number of the newest text block, 0 before any."""
        return self.blocks[-1].number if self.blocks else 0

    # -- growing

    def apply(self, event: Event) -> None:
        """Take one event in."""
        if event.seq:
            self.last_seq = event.seq
        match event:
            case TextDelta(block=number, text=text):
                self.chars += len(text)
                _grow(self.blocks, number, text)
            case ReasoningDelta(block=number, text=text):
                _grow(self.reasoning, number, text)
            case ToolStart():
                self.tools[event.tool_call_id] = {**_bare(event), "after_block": self.last_block}
            case ToolProgress():
                if event.tool_call_id in self.tools:
                    self.tools[event.tool_call_id].update(_bare(event))
            case ToolEnd():
                tool = self.tools.setdefault(event.tool_call_id, {"after_block": self.last_block})
                tool.update(_bare(event))
                tool.pop("message", None)
                tool.pop("fraction", None)
                self._reasoning_mark = self._reasoning_place()
            case Image() | ActionCard() | Commentary():
                fields = to_fields(event)
                fields.pop("seq", None)
                fields.pop("ts", None)
                self.extras.append({**fields, "after_block": self.last_block})
            case ApprovalRequired():
                self.approvals[event.approval_id] = {**_bare(event), "after_block": self.last_block}
            case ApprovalResolved():
                self.approvals.setdefault(event.approval_id, {}).update(_bare(event))
            case AttemptRestarted():
                self._take_reasoning_back()
            case Usage():
                self.input_tokens += event.input_tokens
                self.output_tokens += event.output_tokens
            case Completion():
                self.terminal = to_fields(event)
                if event.replaced and event.text is not None:
                    self.replace_text(event.text)
            case Error():
                self.terminal = to_fields(event)

    def replace_text(self, text: str) -> None:
        """Put `text` in the place of the answer and the thoughts behind it (E2); tools and extras stay, after no text."""
        self.blocks = [_Block(1, text)] if text else []
        self.reasoning = []
        self._reasoning_mark = (0, 0)
        self.chars = len(text)
        for entry in (*self.tools.values(), *self.extras, *self.approvals.values()):
            entry["after_block"] = 0

    def _reasoning_place(self) -> tuple[int, int]:
        return (len(self.reasoning), len(self.reasoning[-1].text)) if self.reasoning else (0, 0)

    def _take_reasoning_back(self) -> None:
        blocks, chars = self._reasoning_mark
        del self.reasoning[blocks:]
        if blocks:
            # Thinking after a tool goes on in the block before it when no text came between.
            self.reasoning[-1].pieces = [self.reasoning[-1].text[:chars]]

    # -- giving out

    def to_document(self) -> dict[str, Any]:
        """All of it as JSON, for storage and for `GET /v1/turns/{id}`: whole tool outputs included."""
        tools = [
            {**tool, "output": self.outputs[call_id]} if call_id in self.outputs else dict(tool)
            for call_id, tool in self.tools.items()
        ]
        document: dict[str, Any] = {
            "blocks": [{"block": b.number, "text": b.text} for b in self.blocks],
            "tools": tools,
            "extras": list(self.extras),
            "approvals": list(self.approvals.values()),
            "last_seq": self.last_seq,
            "epoch": self.epoch,
        }
        if self.reasoning:
            document["reasoning"] = [{"block": b.number, "text": b.text} for b in self.reasoning]
        if self.terminal is not None:
            document["terminal"] = self.terminal
        if self.input_tokens or self.output_tokens:
            document["usage"] = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return document

    @classmethod
    def from_document(
        cls, document: dict[str, Any], *, turn_id: str, conversation_id: str, message_id: str, profile: str
    ) -> TurnContent:
        """The content that `to_document` gave out."""
        content = cls(
            turn_id=turn_id,
            conversation_id=conversation_id,
            message_id=message_id,
            profile=profile,
            epoch=document.get("epoch", 1),
            last_seq=document.get("last_seq", 0),
        )
        content.blocks = [_Block(b["block"], b["text"]) for b in document.get("blocks", [])]
        content.reasoning = [_Block(b["block"], b["text"]) for b in document.get("reasoning", [])]
        content.chars = sum(len(b.text) for b in content.blocks)
        for tool in document.get("tools", []):
            tool = dict(tool)
            output = tool.pop("output", None)
            content.tools[tool["tool_call_id"]] = tool
            if output is not None:
                content.outputs[tool["tool_call_id"]] = output
        content.extras = [dict(extra) for extra in document.get("extras", [])]
        content.approvals = {a["approval_id"]: dict(a) for a in document.get("approvals", [])}
        content.terminal = document.get("terminal")
        usage = document.get("usage") or {}
        content.input_tokens = usage.get("input_tokens", 0)
        content.output_tokens = usage.get("output_tokens", 0)
        content._reasoning_mark = content._reasoning_place()
        return content

    def snapshot(self, status: str) -> bytes:
        """One line of JSON: the `snapshot` event, at most 4 MiB.

        What does not fit goes in the order of the protocol: reasoning, then arguments and previews, then the oldest blocks.
        """
        document = self.to_document()
        event = Snapshot(
            turn_id=self.turn_id,
            conversation_id=self.conversation_id,
            message_id=self.message_id,
            profile=self.profile,
            epoch=self.epoch,
            status=status,
            blocks=document["blocks"],
            tools=[{k: v for k, v in tool.items() if k != "output"} for tool in document["tools"]],
            extras=document["extras"],
            approvals=document["approvals"],
            last_seq=self.last_seq,
            reasoning=document.get("reasoning"),
            terminal=document.get("terminal"),
        )
        data = encode(event)
        if len(data) <= MAX_SNAPSHOT_BYTES:
            return data
        event.truncated = True
        event.reasoning = None
        if len(encode(event)) > MAX_SNAPSHOT_BYTES:
            event.tools = [{k: v for k, v in t.items() if k not in ("arguments", "preview")} for t in event.tools]
        return _without_oldest_blocks(event)


def _without_oldest_blocks(event: Snapshot) -> bytes:
    data = encode(event)
    while len(data) > MAX_SNAPSHOT_BYTES and event.blocks:
        over = len(data) - MAX_SNAPSHOT_BYTES
        first = event.blocks[0]
        size = len(encode(first["text"]))
        if size > over:
            # A character takes up to six bytes, so the cut is a guess that is made again until it is enough. The end of a
            # block says more than its beginning.
            text = clean(first["text"])
            kept = {"block": first["block"], "text": text[len(text) * over // size + 1 :]}
            event.blocks = [kept, *event.blocks[1:]] if kept["text"] else event.blocks[1:]
        else:
            event.blocks = event.blocks[1:]
        data = encode(event)
    while len(data) > MAX_SNAPSHOT_BYTES and (event.extras or event.tools):
        # Only thousands of cards come here; the newest are kept.
        event.extras = event.extras[len(event.extras) // 2 + 1 :]
        event.tools = event.tools[len(event.tools) // 2 + 1 :] if not event.extras else event.tools
        data = encode(event)
    return data


def _grow(blocks: list[_Block], number: int, text: str) -> None:
    if blocks and blocks[-1].number == number:
        blocks[-1].pieces.append(text)
    else:
        blocks.append(_Block(number, text))


def _bare(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name in ("type", "seq", "ts"):
        fields.pop(name, None)
    return fields
