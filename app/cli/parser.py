"""What can be said on the command line, and the help for it."""

from __future__ import annotations

import argparse
import tomllib
from importlib import metadata
from pathlib import Path
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage of everything."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"earlybyte: {message[:1].lower()}{message[1:]}; see {self.prog} --help.\n")


def _with_config(default: str | None) -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument(
        "--config", metavar="FILE", default=default, help="the configuration (default: earlybyte.toml, if there)"
    )
    return parser


def build() -> argparse.ArgumentParser:
    """The parser. Its result has `command`, `config` (a path or None) and what the command takes."""
    # Accepted before and after the command: SUPPRESS keeps the later parser from undoing what the first has read.
    shared = _Parser(add_help=False)
    shared.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="the configuration (default: earlybyte.toml, if there)",
    )
    parser = _Parser(
        prog="earlybyte",
        description="Runs turns of tool-using AI agents and streams them as typed events.",
        parents=[_with_config(None)],
    )
    parser.add_argument("--version", action="version", version=f"earlybyte {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    serve = commands.add_parser(
        "serve",
        parents=[shared],
        help="serve the HTTP API and the demo page",
        description="Serves the HTTP API and the chat page until a signal comes; running turns then have time to end.",
    )
    serve.add_argument("--host", metavar="H", help="the address to listen on (default: server.host)")
    serve.add_argument("--port", metavar="P", help="the port; 0 takes any that is free (default: server.port)")

    chat = commands.add_parser(
        "chat",
        parents=[shared],
        help="send one input and follow the turn",
        description="Sends one input and follows its turn: the answer on standard output, all else on standard error. "
        "Exit codes: 0 complete, 3 partial, 130 cancelled, 4 no answer, 5 the service refused or could not be reached, "
        "2 wrong use or configuration.",
        epilog="Ctrl-C cancels the turn and waits for its end; a second Ctrl-C leaves at once. If nothing listens, the turn "
        "is served within this process, and only EARLYBYTE_SERVER__LOG_LEVEL=debug shows its log.",
    )
    chat.add_argument("text", help="what to say; - reads it from standard input")
    chat.add_argument(
        "--url", help="the service (default: the configured address, or one in this process if nothing listens there)"
    )
    key = chat.add_mutually_exclusive_group()
    key.add_argument("--key", help="an API key; other users of this machine can see it, --key-file is better")
    key.add_argument("--key-file", metavar="FILE", help="a file that has the API key (default: EARLYBYTE_KEY's value)")
    chat.add_argument("--conversation", metavar="ID", help="go on with this conversation (default: a new one)")
    chat.add_argument("--profile", metavar="NAME", help="the assistant to talk to")
    chat.add_argument("--yes", action="store_true", help="approve whatever the assistant asks for")

    commands.add_parser(
        "migrate",
        parents=[shared],
        help="bring the store to this version's schema",
        description="Brings the store to the schema of this version. `serve` does that by itself for SQLite.",
    )
    check = commands.add_parser(
        "check",
        parents=[shared],
        help="say whether `serve` would start, and whether what stands around it fits",
        description="Checks configuration, time ladder and profiles with their tools, opens the store, and reads the files "
        "of proxies and orchestrators that are given. Exit code 1: something in them is wrong.",
    )
    for kind, what in (
        ("nginx", "an nginx configuration"),
        ("kubernetes", "manifests with an Ingress or a Deployment"),
        ("compose", "a compose file"),
    ):
        check.add_argument(f"--{kind}", metavar="FILE", action="append", default=[], help=f"{what} to hold to the ladder")

    look = commands.add_parser(
        "probe",
        parents=[shared],
        help="look at an installation from outside, through its proxies",
        description="Runs two harmless turns in a conversation of its own and says what is right, what is wrong and how to "
        "mend it. Exit code 1: something is wrong.",
    )
    look.add_argument("url", help="the service, as its users reach it; with --raw, any address of an event stream")
    look.add_argument("--raw", action="store_true", help="only watch this event stream")
    look.add_argument("--patience", type=float, default=20.0, metavar="S", help="seconds of silence to sit out (20)")
    look.add_argument("--input", default="Give me a long answer", help="what to ask")
    look.add_argument("--profile", metavar="NAME", help="the assistant to ask")
    look.add_argument("--json", action="store_true", help="for machines")
    look_key = look.add_mutually_exclusive_group()
    look_key.add_argument("--key", help="an API key; other users of this machine can see it, --key-file is better")
    look_key.add_argument(
        "--key-file", metavar="FILE", help="a file that has the API key (default: EARLYBYTE_KEY's value, but not with --raw)"
    )

    keys = commands.add_parser("key", parents=[shared], help="make, list and revoke API keys", description="API keys.")
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    create = actions.add_parser(
        "create",
        parents=[shared],
        help="make a key",
        description="Makes a key and prints it on standard output, this once; only its hash is stored.",
    )
    create.add_argument("--user", required=True, metavar="U", help="whose key it is")
    create.add_argument("--role", choices=["user", "admin"], default="user", help="what it may do (default: user)")
    create.add_argument("--tenant", default="", metavar="T", help="the tenant the user belongs to (default: none)")
    actions.add_parser("list", parents=[shared], help="list keys, without the keys themselves", description="Lists keys.")
    revoke = actions.add_parser("revoke", parents=[shared], help="make a key useless", description="Revokes a key.")
    revoke.add_argument("id", metavar="ID", help="the key's id, as `key list` shows it")
    return parser


def _version() -> str:
    try:
        return metadata.version("earlybyte")
    except metadata.PackageNotFoundError:
        # Run from its source, as in the container image.
        project = Path(__file__).parents[2] / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
