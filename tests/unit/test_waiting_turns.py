"""Who is told that a turn waits, on a real store (H5, section 3 `queued`)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from app.providers.chunks import Text
from app.store import conversations
from tests.performers import STOP, ScriptedProvider
from tests.workshop import Workshop, store_in

pytestmark = pytest.mark.anyio


async def test_a_turn_that_waits_for_nothing_is_not_told_that_it_waits(tmp_path: Path) -> None:
    """Section 3: `queued` means waiting for the conversation or a run slot. Turns that come at once, each in a conversation
    of its own and with room for all, do neither, whatever is being stored for them (H5)."""
    count = 10
    provider = ScriptedProvider(*([[Text("hi"), STOP]] * count))
    positions: list[int | None] = []
    async with store_in(tmp_path) as store:
        for number in range(count):
            row = conversations.Conversation(id=f"conv_no_{number}", user_id="ann", created_at=1, updated_at=1)
            await store.write(lambda conn, row=row: conversations.insert(conn, row))
        async with Workshop(store, provider).work() as shop:

            async def ask(number: int) -> None:
                admitted = await shop.ask(conversation_id=f"conv_no_{number}")
                positions.append(shop.log(admitted.turn_id).position)
                await shop.settled(admitted.turn_id)

            async with anyio.create_task_group() as group:
                for number in range(count):
                    group.start_soon(ask, number)
    assert positions == [None] * count
