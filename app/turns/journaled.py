"""What the journal says of a turn that runs in another process, or ran in one that is gone."""

from __future__ import annotations

from app.events import codec
from app.events.content import TurnContent
from app.events.types import Event
from app.store.journal import Entry
from app.store.turns import TurnRow


def has_begun(row: TurnRow, entries: list[Entry]) -> bool:
    """Whether it has run. Its row may not say so when the store was slow at the start; then its journal does."""
    return row.status != "queued" or bool(entries)


def content_of(row: TurnRow, entries: list[Entry]) -> TurnContent:
    """What was shown of a turn up to its last checkpoint, folded from its journal."""
    content = TurnContent(
        turn_id=row.id,
        conversation_id=row.conversation_id,
        message_id=row.message_id,
        profile=row.profile,
        epoch=row.epoch,
    )
    if has_begun(row, entries):
        # turn_started is not in the journal, and has the first number.
        content.last_seq = 1
    for entry in entries:
        if entry.kind == "events":
            for fields in entry.body:
                event = codec.from_fields(fields)
                if isinstance(event, Event):
                    content.apply(event)
        elif entry.kind == "result":
            content.outputs[entry.body["tool_call_id"]] = entry.body["content"]
    content.last_seq = max(content.last_seq, row.last_seq)
    return content
