"""The hooks around one turn: each node's payload made, each answer turned into what the turn needs (PROTOCOL 9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from app.agents.context import Denied
from app.events.types import Completion, Error, SideEffects, Terminal, ToolStatus, UsageTotal
from app.hooks import chain, payloads
from app.hooks.payloads import HookEvent
from app.turns.live import LiveTurn

P = TypeVar("P", bound=HookEvent)


class TurnGuards:
    """The hook chain of a turn's assistant. Nodes that deny raise `Denied`; nodes that watch never hold anything up.

    `background` runs an awaitable that nobody waits for.
    """

    def __init__(self, turn: LiveTurn, background: Callable[[Awaitable[None]], None]) -> None:
        self._turn = turn
        self._chain = turn.assistant.hooks
        self._background = background

    async def on_receive(self, given: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        """The input as it enters the history."""
        if not self._chain.has("on_receive"):
            return given
        return (await self._run(payloads.OnReceive(**self._whose, input=given))).input

    async def before_generation(self, messages: list[dict[str, Any]], *, step: int) -> list[dict[str, Any]]:
        """The messages to send."""
        if not self._chain.has("before_generation"):
            return messages
        model = self._turn.assistant.profile.model
        payload = payloads.BeforeGeneration(**self._whose, messages=messages, model=model, step=step)
        return (await self._run(payload)).messages

    async def before_tool(
        self, *, tool_call_id: str, name: str, arguments: dict[str, Any], side_effects: SideEffects
    ) -> dict[str, Any]:
        """The arguments to call with."""
        if not self._chain.has("before_tool"):
            return arguments
        payload = payloads.BeforeTool(
            **self._whose, tool_call_id=tool_call_id, name=name, arguments=arguments, side_effects=side_effects
        )
        return (await self._run(payload)).arguments

    async def after_tool(
        self,
        *,
        tool_call_id: str,
        name: str,
        arguments: dict[str, Any],
        side_effects: SideEffects,
        status: ToolStatus,
        result: str,
    ) -> str:
        """The result to tell the model."""
        if not self._chain.has("after_tool"):
            return result
        payload = payloads.AfterTool(
            **self._whose,
            tool_call_id=tool_call_id,
            name=name,
            arguments=arguments,
            side_effects=side_effects,
            status=status,
            result=result,
        )
        return (await self._run(payload)).result

    async def after_generation(self, ending: Completion, text: str) -> str:
        """The text to save; the same object when no hook changed it."""
        if not text or not self._chain.has("after_generation"):
            return text
        payload = payloads.AfterGeneration(
            **self._whose, text=text, status=ending.status, finish_reason=ending.finish_reason
        )
        return (await self._run(payload)).text

    def on_delivery(self, terminal: Terminal) -> None:
        """Tell the watchers that the terminal event is in the log."""
        payload = payloads.OnDelivery(**self._whose, message_id=self._turn.row.message_id, terminal=terminal)
        self._watch("on_delivery", payload)

    def on_turn_end(self, terminal: Terminal, *, status: str, text: str, usage: UsageTotal | None, ms: int) -> None:
        """Tell the watchers that the turn is settled; once for every ending."""
        payload = payloads.OnTurnEnd(
            **self._whose,
            message_id=self._turn.row.message_id,
            status=status,
            finish_reason=terminal.finish_reason if isinstance(terminal, Completion) else None,
            code=terminal.code if isinstance(terminal, Error) else None,
            text=text,
            model=self._turn.assistant.profile.model or None,
            usage=usage,
            duration_ms=ms,
        )
        self._watch("on_turn_end", payload)

    def on_error(self, where: str, words: str) -> None:
        """Tell the watchers of an error that was caught."""
        self._watch("on_error", payloads.OnError(**self._whose, where=where, error=words))

    @property
    def _whose(self) -> dict[str, Any]:
        row = self._turn.row
        return {
            "turn_id": row.id,
            "conversation_id": row.conversation_id,
            "user_id": row.user_id,
            "profile": row.profile,
            "tenant": row.tenant,
            "metadata": row.metadata or {},
        }

    async def _run(self, payload: P) -> P:
        answer = await self._chain.run(payload.node, payload)
        if isinstance(answer, chain.Denied):
            raise Denied(answer.words)
        return answer

    def _watch(self, node: payloads.Node, payload: HookEvent) -> None:
        if self._chain.has(node):
            self._background(self._chain.watch(node, payload))
