"""A plan for the scripted upstream in which the user's own words say what the model does.

`hang` begins and never ends; `silent` sends headers only; `status 401` refuses; `call NAME {…}` asks for one tool and then
says "done"; `big 300000` says that many characters in pieces of 8,192, `lump 400000` in one, and `wide 20` so many pieces of
60,000 with pauses; `drip 40` says so many short words with pauses; `nul` says U+0000; anything else is answered by
"Hello world".
"""

from __future__ import annotations

import json

from tests.upstream import Finish, Hang, Head, Pause, Request, Script, Status, Text, say, use

ANSWER = "Hello world"
WIDE = "line of text, " * 4285


def last_words(request: Request) -> str:
    """The text of the user's newest message."""
    for message in reversed(request.body["messages"]):
        if message["role"] == "user":
            content = message["content"]
            return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
    return ""


def by_words(request: Request) -> Script:
    """What the model does for this request."""
    word, _, rest = last_words(request).partition(" ")
    match word:
        case "hang":
            return [Text("begun"), Hang()]
        case "silent":
            return [Head(), Hang()]
        case "status":
            return [Status(int(rest))]
        case "call" if request.body["messages"][-1]["role"] == "tool":
            return say("done")
        case "call":
            name, _, arguments = rest.partition(" ")
            return use(("call_1", name, json.loads(arguments or "{}")))
        case "big":
            return _pieces("0123456789abcdef" * 512, int(rest))
        case "lump":
            return [Text("0123456789abcdef" * (int(rest) // 16)), Pause(1.2), Text("end"), Finish()]
        case "nul":
            return say("a\x00b", "\x00 c")
        case "wide":
            return _paced([WIDE] * int(rest), 0.01)
        case "drip":
            return _paced([f"{number} " for number in range(int(rest))], 0.05)
    return say("Hello ", "world")


def _paced(pieces: list[str], gap: float) -> Script:
    for piece in pieces:
        yield Text(piece)
        yield Pause(gap)
    yield Finish()


def _pieces(piece: str, chars: int) -> Script:
    for _ in range(chars // len(piece)):
        yield Text(piece)
    yield Finish()
