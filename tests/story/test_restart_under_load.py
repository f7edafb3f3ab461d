"""A deploy under two hundred streams: stop, start again on the same store, and every viewer ends with the right text."""

from __future__ import annotations

import http.client
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.event_stream import SSEParser
from tests.plan_by_words import by_words
from tests.service import Service, wait_until
from tests.upstream import Upstream

RUNGS = {"tool": 10, "turn": 20, "request": 21, "drain": 22, "shutdown": 24,
         "model_first_token": 15, "model_between_tokens": 10}  # fmt: skip
SPEAKING, ASKING, VIEWERS = 30, 10, 5
SPOKEN = "".join(f"{number} " for number in range(60))


@dataclass
class Follower:
    """A viewer that does what an EventSource does: it reads, comes back with its last id, and stops at 204."""

    service: Service
    turn: str
    text: str = ""
    terminals: list[str] = field(default_factory=list)
    ids: Counter[str] = field(default_factory=Counter)
    ends: list[str] = field(default_factory=list)
    broken: int = 0

    def follow(self) -> Follower:
        give_up_at = time.monotonic() + 60
        last_id = ""
        while time.monotonic() < give_up_at:
            try:
                last_id, over = self._once(last_id)
            except OSError:
                over = False  # nobody listens at the moment
            if over:
                return self
            time.sleep(0.2)
        raise AssertionError(f"{self.turn} never ended: {self}")

    def _once(self, last_id: str) -> tuple[str, bool]:
        """One connection; the id to come back with, and whether there is nothing more to come for."""
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=30)
        try:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            connection.request("GET", f"/v1/turns/{self.turn}/events", headers={"Accept": "text/event-stream", **headers})
            response = connection.getresponse()
            if response.status == 204:
                return last_id, True
            assert response.status == 200, response.read()
            parser = SSEParser(last_id=last_id)
            while piece := response.read1(65536):
                for event in parser.feed(piece, 0.0):
                    self._take(event.json)
                    if event.id is not None and event.type != "snapshot":
                        self.ids[event.id] += 1
                    if event.type == "stream_end":
                        self.ends.append(str(event["reason"]))
                        return parser.last_id, not event["resume"]
            self.broken += 1
            return parser.last_id, False
        except http.client.RemoteDisconnected:
            # It was accepted by the kernel and never answered: as good as refused.
            return last_id, False
        except http.client.IncompleteRead:
            self.broken += 1
            return last_id, False
        finally:
            connection.close()

    def _take(self, event: dict[str, object]) -> None:
        match event:
            case {"type": "text_delta", "text": str(text)}:
                self.text += text
            case {"type": "snapshot", "blocks": list(blocks)}:
                self.text = "".join(block["text"] for block in blocks)
                if "terminal" in event:
                    self.terminals.append("snapshot")
            case {"type": "completion" | "error"}:
                self.terminals.append(str(event.get("finish_reason", event.get("code"))))


@pytest.mark.slow
def test_every_viewer_ends_with_the_right_text() -> None:
    """What runs finishes where it is; what waits for a person is there after the start. No body is cut."""
    with Upstream(by_words) as upstream, Service(upstream, rungs=RUNGS) as service, ThreadPoolExecutor(220) as pool:
        speaking = [service.start_turn("drip 60") for _ in range(SPEAKING)]
        asking = [service.start_turn(f'call guarded {{"value": "{number}"}}') for number in range(ASKING)]
        wait_until(lambda: all(service.turn(turn)["status"] == "waiting" for turn in asking), what="the questions")
        followers = [pool.submit(Follower(service, turn).follow) for turn in (*speaking, *asking) for _ in range(VIEWERS)]
        opened = f"earlybyte_open_viewers {len(followers)}.0"
        wait_until(lambda: opened in service.call("GET", "/metrics").body.decode(), what="200 streams")
        service.sigterm()
        assert service.wait_exit(30) == 0
        service.start()
        for turn in asking:
            [question] = service.turn(turn)["approvals"]
            path = f"/v1/turns/{turn}/approvals/{question['approval_id']}"
            assert service.call("POST", path, {"decision": "approve"}).status == 200
        done = [follower.result(90) for follower in followers]
        assert {one.text for one in done if one.turn in speaking} == {SPOKEN}
        assert {one.text for one in done if one.turn in asking} == {"done"}
        assert {len(one.terminals) for one in done} == {1}, Counter(tuple(one.terminals) for one in done)
        assert max(max(one.ids.values()) for one in done) == 1
        assert not [one for one in done if one.broken]
        assert {"draining", "done"} >= {end for one in done for end in one.ends}
        assert len(service.ledger(tool="guarded", phase="begin")) == ASKING
        assert len(upstream.requests) == SPEAKING + 2 * ASKING
