"""A turn on a terminal: the answer on standard output, everything else on standard error."""

from __future__ import annotations

import re
from typing import Any, TextIO

# What a terminal would obey: control characters but tab and line feed. An answer must not steer the reader's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _RED, _YELLOW, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_ENDINGS = {"complete": 0, "partial": 3, "cancelled": 130}
NO_ANSWER = 4
_STATUSES = {
    "error": "failed",
    "timeout": "timed out",
    "unknown": "outcome unknown, it may or may not have taken effect",
}
_DECISIONS = {"approve": "approved", "deny": "denied"}
# The last line, by `finish_reason`; a reason that is not known here is told by its status alone.
_LAST_WORDS = {
    "stop": "complete",
    "refused": "refused: a rule of this service took the answer back",
    "cancelled": "cancelled",
    "length": "cut short: the answer became too long",
    "content_filter": "cut short: the model's own filter stopped it",
    "tool_limit": "cut short: it took too many steps with tools",
    "deadline": "interrupted: the time for this turn was over",
    "upstream_error": "interrupted: the model's answer broke off",
    "shutdown": "interrupted: the service was stopped",
    "recovered": "interrupted: the service was started again",
}


class Screen:
    """Shows events as they come. `exit_code` is None until the turn has ended (listed in `app.cli.chat`)."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._colour = err.isatty()
        self._shown = ""
        self._block = 1
        self._thinking = False
        self._titles: dict[str, str] = {}
        self._ended: set[str] = set()
        self.exit_code: int | None = None

    def show(self, event: dict[str, Any]) -> None:
        """Show one event; kinds that are not known are passed over, as the protocol asks."""
        match event.get("type"):
            case "text_delta":
                self._text(event)
            case "reasoning_delta":
                if not self._thinking:
                    self._thinking = True
                    self.note("thinking …")
            case "commentary":
                self.note(str(event.get("text")))
            case "tool_start":
                title = str(event.get("title") or event.get("name"))
                self._titles[str(event.get("tool_call_id"))] = title
                self.note(f"▸ {title} …")
            case "tool_progress" if event.get("message"):
                self.note(f"  {event['message']}")
            case "tool_end":
                self._tool_end(event)
            case "image":
                self.note(f"[image: {event.get('alt')}] {event.get('url')}")
            case "action_card":
                self._card(event)
            case "attempt_restarted":
                self._thinking = False
                self.note("trying again …")
            case "notice":
                self.note(str(event.get("text")), _RED if event.get("level") == "error" else _YELLOW)
            case "queued":
                self.note(f"waiting, place {event.get('position')} …")
            case "approval_resolved":
                decision = str(event.get("decision"))
                self.note(f"approval: {_DECISIONS.get(decision, decision)} by {event.get('by')}")
            case "snapshot":
                self._snapshot(event)
            case "completion":
                self._completion(event)
            case "error":
                self._finish(str(event.get("message")), _RED)
                self.exit_code = NO_ANSWER
            case "message_save_failed":
                self.note("The answer is not saved yet; the service goes on trying.", _YELLOW)
            case _:
                pass

    def note(self, words: str, colour: str = _DIM) -> None:
        """One line on standard error; a line of the answer that is still open is closed before it on a terminal."""
        if self._out.isatty() and self._shown and not self._shown.endswith("\n"):
            self._write("\n")
        words = _CONTROL.sub("\ufffd", words.replace("\n", " "))
        self._err.write(f"{colour}{words}{_PLAIN}\n" if self._colour else f"{words}\n")
        self._err.flush()

    def ask(self, event: dict[str, Any], choice: str = " [y/n]") -> None:
        """Show what an approval is for, and what can be answered."""
        self.note(f"{event.get('prompt') or event.get('title')}{choice}", _YELLOW)

    def _text(self, event: dict[str, Any]) -> None:
        text = str(event.get("text", ""))
        block = int(event.get("block", self._block))
        if block != self._block and self._shown:
            text = ("\n" if self._shown.endswith("\n") else "\n\n") + text
        self._block = block
        self._write(text)

    def _write(self, text: str) -> None:
        self._shown += text
        self._out.write(_CONTROL.sub("\ufffd", text) if self._out.isatty() else text)
        self._out.flush()

    def _tool_end(self, event: dict[str, Any]) -> None:
        call_id, status = str(event.get("tool_call_id")), str(event.get("status"))
        if call_id in self._ended:
            return
        self._ended.add(call_id)
        title = self._titles.get(call_id, "tool")
        took = "" if status == "unknown" else f", {int(event.get('duration_ms', 0)) / 1000:.1f} s"
        words = f"  {title}: {_STATUSES.get(status, status)}{took}"
        self.note(words, _DIM if status == "ok" else _RED)

    def _card(self, event: dict[str, Any]) -> None:
        self.note(f"┌ {event.get('title')}")
        for field in event.get("fields", []):
            self.note(f"│ {field.get('label')}: {field.get('value')}")
        for action in event.get("actions", []):
            self.note(f"└ {action.get('title')}: {action.get('url') or action.get('input') or ''}")

    def _snapshot(self, event: dict[str, Any]) -> None:
        """Go on from a snapshot: only what is new of it, if it continues what was shown; else all of it again."""
        blocks = [block for block in event.get("blocks", []) if block.get("text")]
        self._replace("\n\n".join(str(block["text"]) for block in blocks))
        if blocks:
            self._block = int(blocks[-1].get("block", self._block))
        for tool in event.get("tools", []):
            call_id = str(tool.get("tool_call_id"))
            begun = call_id in self._titles
            self._titles[call_id] = str(tool.get("title") or tool.get("name"))
            # What ended while nobody looked: the end of one that was seen to begin, and whatever went wrong.
            if tool.get("status") and (begun or tool["status"] != "ok"):
                self._tool_end(tool)
        if isinstance(event.get("terminal"), dict):
            self.show(event["terminal"])

    def _replace(self, text: str) -> None:
        if text.split() == self._shown.split():
            return
        if text.startswith(self._shown):
            self._write(text[len(self._shown) :])
            return
        self.note("the answer up to here is replaced by:", _YELLOW)
        self._shown = ""
        self._write(text)

    def _completion(self, event: dict[str, Any]) -> None:
        if event.get("replaced") and event.get("text") is not None:
            self._replace(str(event["text"]))
        status = str(event.get("status"))
        words = _LAST_WORDS.get(str(event.get("finish_reason")), status)
        usage = event.get("usage") or {}
        tokens = f", {usage['input_tokens']} + {usage['output_tokens']} tokens" if usage else ""
        self._finish(f"{words}{tokens}", _DIM if status == "complete" else _YELLOW)
        self.exit_code = _ENDINGS.get(status, NO_ANSWER)

    def _finish(self, words: str, colour: str) -> None:
        if self._shown and not self._shown.endswith("\n"):
            self._write("\n")
        self.note(f"— {words}", colour)
