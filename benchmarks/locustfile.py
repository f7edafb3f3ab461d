"""Load for an installation of your own: users who talk, read their streams to the end, and sometimes come back to them.

    pip install --require-hashes -r requirements-bench.txt        # locust; nothing else here needs it
    locust -f benchmarks/locustfile.py --host http://127.0.0.1:8000 --users 200 --spawn-rate 20

`EARLYBYTE_KEY` is the API key, where the service wants one. Beside locust's own figures each turn reports `first byte`,
`first text` and `turn` (to `stream_end`), and fails if its stream breaks or the turn ends in an error.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

from locust import HttpUser, between, task

QUESTIONS = (
    "Which invoices are still open?",
    "Give me a short summary of this month.",
    "Explain in detail how the figures of this quarter came about.",
    "Thank you!",
)


class Person(HttpUser):
    """Somebody with a chat window: a few questions in one conversation, a pause for reading between them."""

    wait_time = between(1, 8)

    def on_start(self) -> None:
        if key := os.environ.get("EARLYBYTE_KEY"):
            self.client.headers["Authorization"] = f"Bearer {key}"
        self.conversation = self._new_conversation()

    def _new_conversation(self) -> str:
        return str(self.client.post("/v1/conversations", json={}, name="new conversation").json()["id"])

    @task(10)
    def ask(self) -> None:
        """One turn, followed in the answer to its POST."""
        path = f"/v1/conversations/{self.conversation}/turns"
        self._follow("POST", path, json={"input": random.choice(QUESTIONS), "on_busy": "enqueue"})

    @task(2)
    def ask_and_lose_the_connection(self) -> None:
        """One turn whose stream breaks in the middle and is taken up where it was."""
        path = f"/v1/conversations/{self.conversation}/turns"
        last = self._follow("POST", path, json={"input": random.choice(QUESTIONS), "on_busy": "enqueue"}, leave_after=5)
        if last is not None:
            self._follow("GET", f"/v1/turns/{last.split('-')[0]}/events", headers={"Last-Event-ID": last})

    @task(1)
    def look_back(self) -> None:
        """The history of the conversation."""
        self.client.get(f"/v1/conversations/{self.conversation}/messages", name="history")

    @task(1)
    def start_anew(self) -> None:
        self.conversation = self._new_conversation()

    def _follow(self, method: str, path: str, *, leave_after: int | None = None, **more: Any) -> str | None:
        """Read a stream to its end, or to the id of the event number `leave_after`; None when it was over before."""
        started = time.monotonic()
        headers = {"Accept": "text/event-stream", **more.pop("headers", {})}
        name = "turn" if method == "POST" else "resume"
        failure: str | None = None
        with self.client.request(
            method, path, headers=headers, stream=True, catch_response=True, name=f"{name}: head", **more
        ) as response:
            if response.status_code == 204:
                response.success()
                return None
            if response.status_code != 200:
                response.failure(f"{response.status_code}: {response.text[:200]}")
                return None
            response.success()
            spoken, ended, count = False, False, 0
            for number, (event_id, event) in enumerate(_events(response.iter_content(chunk_size=None), self, name, started)):
                count = number
                if event["type"] == "text_delta" and not spoken:
                    spoken = True
                    self._report(f"{name}: first text", started)
                ended = ended or event["type"] == "stream_end"
                if event["type"] == "error":
                    failure = f"the turn ended in {event['code']}"
                if leave_after is not None and number >= leave_after and event_id:
                    return event_id
            if not ended:
                failure = f"the stream broke after {count} events"
        self._report(name, started, failure)
        return None

    def _report(self, name: str, started: float, failure: str | None = None) -> None:
        self.environment.events.request.fire(
            request_type="SSE",
            name=name,
            response_time=(time.monotonic() - started) * 1000,
            response_length=0,
            exception=RuntimeError(failure) if failure else None,
            context={},
        )


def _events(
    pieces: Iterator[bytes], person: Person, name: str, started: float
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """The events of a stream with their ids; reports its first byte."""
    buffer, first = b"", True
    for piece in pieces:
        if first:
            person._report(f"{name}: first byte", started)  # noqa: SLF001 - of this file
            first = False
        buffer += piece
        *blocks, buffer = buffer.split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if line.startswith((b"id: ", b"data: ")))
            if b"data" in fields:
                event_id = fields.get(b"id")
                yield (event_id.decode() if event_id else None), json.loads(fields[b"data"])
