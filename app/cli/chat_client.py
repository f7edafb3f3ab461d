"""The requests that a chat needs, and a stream of events that survives broken connections (PROTOCOL 4)."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import anyio
import httpx

from app.cli.event_stream import EventStream
from app.errors import EarlybyteError
from app.ids import new_id
from app.limits.deadline import Deadline
from app.limits.retry import RetryDecision, call_with_retries

# Seconds of vain tries to come back to a turn before it is given up; restarts and deployments are shorter.
_PATIENCE = 120.0
# Tries of a request that does not get through.
_ATTEMPTS = 4


class Unreachable(EarlybyteError):
    """The service does not answer."""

    code = "unreachable"


class Refused(EarlybyteError):
    """The service refused the request."""

    code = "refused"


class ChatClient:
    """One caller of one service. `http` has its address, key and timeouts; its read timeout is the watchdog."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def open_conversation(self, profile: str | None) -> str:
        """The id of a new conversation.

        Raises:
            Refused: the service said no.
            Unreachable: it does not answer.
        """
        reply = await self._post("/v1/conversations", {"profile": profile} if profile else {}, attempts=1)
        return str(reply["id"])

    async def start_turn(self, conversation: str, text: str, profile: str | None) -> str:
        """The id of the turn that `text` began; a repetition after a lost answer starts no second one (H3).

        Raises:
            Refused: the service said no.
            Unreachable: it does not answer.
        """
        body = {"input": text, "profile": profile} if profile else {"input": text}
        headers = {"Idempotency-Key": new_id("chat"), "Accept": "application/json"}
        reply = await self._post(f"/v1/conversations/{conversation}/turns", body, headers)
        return str(reply["turn_id"])

    async def cancel(self, turn: str) -> None:
        """Ask for the turn's end; its events tell when it is there. Raises as `start_turn` does."""
        await self._post(f"/v1/turns/{turn}/cancel", {})

    async def decide(self, turn: str, approval: str, decision: str) -> None:
        """Answer an approval. Raises as `start_turn` does; `Refused` also when it is closed already."""
        await self._post(f"/v1/turns/{turn}/approvals/{approval}", {"decision": decision})

    async def events(self, turn: str) -> AsyncGenerator[dict[str, Any], None]:
        """The turn's events to its end, each once: after a break it goes on behind the last one that was seen.

        Close it (`contextlib.aclosing`), or its connection lives as long as the loop.

        Raises:
            Refused: this caller may not read the turn.
            Unreachable: no event came through for two minutes of trying.
        """
        stream = EventStream()
        patience = Deadline(_PATIENCE)
        while True:
            headers = {"Accept": "text/event-stream"}
            if stream.last_id is not None:
                headers["Last-Event-ID"] = stream.last_id
            stream.reconnected()
            came_through = False
            try:
                async with self._http.stream("GET", f"/v1/turns/{turn}/events", headers=headers) as response:
                    if response.status_code == 204:
                        return
                    if 400 <= response.status_code < 500:
                        await response.aread()
                        raise _refusal(response)
                    # A proxy's 502 to 504 is a break like any other.
                    pieces = response.aiter_bytes() if response.status_code == 200 else _nothing()
                    async for piece in pieces:
                        for event in stream.feed(piece):
                            yield event
                            if event.get("type") != "stream_end":
                                came_through = True
                            elif not event.get("resume"):
                                return
            except httpx.TransportError:
                pass  # broken, or silent for longer than the watchdog allows
            if came_through:
                patience = Deadline(_PATIENCE)
            elif patience.expired:
                raise Unreachable(f"The service at {self._http.base_url} has not come back.")
            await anyio.sleep(stream.retry_ms / 1000 * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret

    async def _post(
        self, path: str, body: object, headers: dict[str, str] | None = None, *, attempts: int = _ATTEMPTS
    ) -> dict[str, Any]:
        async def attempt(_number: int) -> httpx.Response:
            return await self._http.post(path, json=body, headers=headers)

        try:
            response = await call_with_retries(
                attempt,
                attempts=attempts,
                may_retry=lambda error: RetryDecision(isinstance(error, httpx.TransportError)),
                remaining=lambda: _PATIENCE,
                on_retry=_silently,
            )
        except httpx.InvalidURL:
            raise Unreachable(f"{self._http.base_url} is not an address.") from None
        except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
            raise Unreachable(f"The service at {self._http.base_url} does not answer: {error}.") from None
        if response.is_error or response.is_redirect:
            raise _refusal(response)
        try:
            reply = response.json()
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise Refused(f"What answers at {self._http.base_url} is not Earlybyte.")
        return reply


async def _silently(_attempt: int, _error: Exception) -> None:
    return None


async def _nothing() -> AsyncIterator[bytes]:
    pieces: tuple[bytes, ...] = ()
    for piece in pieces:
        yield piece


def _refusal(response: httpx.Response) -> Refused:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    words = ""
    if isinstance(problem, dict):
        words = str(problem.get("detail") or problem.get("title") or "")
    hint = " Give a good key with --key-file or EARLYBYTE_KEY." if response.status_code == 401 else ""
    return Refused(f"The service refused ({response.status_code}): {(words or response.reason_phrase).rstrip('.')}.{hint}")
