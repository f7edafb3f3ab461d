"""Turns without the edge: a real store in a file, the real supervisor, scripted models. For what the wire cannot show."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from app.config import Limits, Profile, Settings
from app.hooks.chain import HookChain
from app.ids import new_id
from app.limits.budget import Timeouts
from app.limits.threads import WorkerThreads
from app.store import conversations, journal, messages, turns
from app.store.engine import Store
from app.store.journal import Entry
from app.store.lease import Lease
from app.store.messages import Message
from app.store.turns import TurnRow
from app.tools.tool import Tool
from app.turn_log.log import TurnLog, TurnLogs
from app.turns.admission import Admitted, TurnRequest, admit
from app.turns.assistant import Assistant
from app.turns.live import LiveTurn
from app.turns.parts import Parts
from app.turns.recovery import recover
from app.turns.supervisor import Supervisor
from app.turns.unsaved import Unsaved
from tests.performers import ScriptedProvider

CONVERSATION = "conv_1"


class Alone(Lease):
    """The lease of a process that is alone: every other owner is dead."""

    async def try_to_take(self) -> bool:
        return True

    async def holder(self) -> str:
        return ""

    async def hand_over(self) -> None:
        pass

    async def living(self, owners: Iterable[str]) -> set[str]:
        return set()

    async def close(self) -> None:
        pass


@dataclass
class Workshop:
    """The parts of a process that run turns. `work()` is its life."""

    store: Store
    provider: ScriptedProvider = field(default_factory=ScriptedProvider)
    tools: Sequence[Tool] = ()
    hooks: Sequence[Callable[..., Any]] = ()
    agent: Callable[..., Any] | None = None
    restartable: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    texts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hook_threads = WorkerThreads(8)
        assistant = Assistant(
            name="default",
            profile=Profile(model="scripted", restartable=self.restartable),
            hooks=HookChain(self.hooks, threads=hook_threads),  # type: ignore[arg-type]  # decorated functions
            provider=None if self.agent is not None else self.provider,
            agent=self.agent,
            tools={tool.name: tool for tool in self.tools},
        )
        self.parts = Parts(
            settings=Settings.model_validate({"timeouts": self.timeouts, "limits": self.limits, "texts": self.texts}),
            store=self.store,
            logs=TurnLogs(log_bytes=16 << 20, logs_bytes=256 << 20),
            assistants={"default": assistant},
            threads=WorkerThreads(self.limits.turns),
            tool_threads=WorkerThreads(self.limits.turns * 2),
            unsaved=Unsaved(self.store),
            background=lambda work: self.supervisor.background(work),  # noqa: PLW0108 - it comes after its parts
            owner=new_id("proc"),
        )
        self.supervisor = Supervisor(self.parts)
        self.lease = Alone()

    @asynccontextmanager
    async def work(self) -> AsyncIterator[Workshop]:
        """The supervisor at work, for at most 30 s; what a dead process left is taken over first."""
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                async with self.supervisor.run(group):
                    await recover(self.parts, self.supervisor, self.lease)
                    yield self
                group.cancel_scope.cancel()

    async def ask(self, text: str = "hello", **more: Any) -> Admitted:
        """A turn, admitted as the edge does."""
        request = {
            "conversation_id": CONVERSATION, "tenant": "", "user_id": "ann", "anonymous": False, "address": "127.0.0.1",
            "input": text, "profile": None, "on_busy": "reject", "on_disconnect": "continue", "metadata": None,
            "idempotency_key": None, "body": {"input": text},
        } | more  # fmt: skip
        return await admit(TurnRequest(**request), self.parts, self.supervisor)

    def live(self, turn_id: str) -> LiveTurn:
        turn = self.supervisor.get(turn_id)
        assert turn is not None
        return turn

    def log(self, turn_id: str) -> TurnLog:
        log = self.parts.logs.get(turn_id)
        assert log is not None
        return log

    async def settled(self, turn_id: str) -> TurnLog:
        """The log of a turn, once it is settled."""
        turn = self.supervisor.get(turn_id)
        if turn is not None:
            await turn.settled.wait()
        return self.log(turn_id)

    async def answer(self, text: str = "hello", **more: Any) -> TurnLog:
        return await self.settled((await self.ask(text, **more)).turn_id)

    async def messages(self) -> list[Message]:
        return await self.store.read(lambda conn: messages.list_page(conn, CONVERSATION, limit=100))

    async def row(self, turn_id: str) -> TurnRow | None:
        return await self.store.read(lambda conn: turns.get(conn, turn_id))

    async def journal(self, turn_id: str) -> list[Entry]:
        return await self.store.read(lambda conn: journal.load(conn, turn_id))


@asynccontextmanager
async def store_in(folder: Path) -> AsyncIterator[Store]:
    """A fresh store with one conversation of Ann's."""
    store = await Store.open(f"sqlite+aiosqlite:///{folder}/store.db")
    try:
        row = conversations.Conversation(id=CONVERSATION, user_id="ann", created_at=1, updated_at=1)
        await store.write(lambda conn: conversations.insert(conn, row))
        yield store
    finally:
        await store.close()


async def left_behind(store: Store, *entries: tuple[str, Any], status: str = "running", **columns: Any) -> str:
    """A turn as a dead process leaves it: its row and its journal. Its id."""
    turn_id = new_id("turn")
    values: dict[str, Any] = {
        "id": turn_id, "conversation_id": CONVERSATION, "user_id": "ann", "message_id": f"msg_{turn_id}",
        "user_message_id": f"msg_user_{turn_id}", "profile": "default", "input": "hello", "place": 1, "status": status,
        "owner": "proc_dead", "received": status != "queued", "created_at": 1,
    } | columns  # fmt: skip

    async def op(conn: Any) -> None:
        await turns.insert(conn, TurnRow(**values))
        for n, (kind, body) in enumerate(entries):
            await journal.append(conn, turn_id, n=n + 1, epoch=1, kind=kind, body=body)  # type: ignore[arg-type]

    await store.write(op)
    return turn_id


def told(log: TurnLog) -> list[dict[str, Any]]:
    """The events of a log, as a client reads them."""
    return [json.loads(frame.decode().split("data: ", 1)[1]) for frame in log.after(log.floor, 1 << 30)[0]]


def kinds(log: TurnLog) -> list[str]:
    return [event["type"] for event in told(log)]
