"""The command line. Every failure that a person can mend is one sentence on standard error, never a trace (PROTOCOL 8).

Exit codes: 0 done; 1 failed; 2 wrong usage or configuration. `chat` has its own, listed in `app.cli.chat`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from app.cli.parser import build
from app.config import Settings
from app.errors import ConfigError, EarlybyteError
from app.observability.logging import configure, mask

__all__ = ["main"]


def _address(arguments: argparse.Namespace) -> dict[tuple[str, ...], str]:
    """What `serve` was told of its address, as settings."""
    told = {name: getattr(arguments, name, None) for name in ("host", "port")}
    return {("server", name): value for name, value in told.items() if value is not None}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    `argv` is without the program's name; None takes the process's own.
    """
    arguments = build().parse_args(argv)
    # Tools, hooks and agents may lie in the working directory; last, so that they hide no module of anybody else.
    sys.path.append(str(Path.cwd()))
    settings: Settings | None = None
    try:
        settings = Settings.load(arguments.config, options=_address(arguments))
        if arguments.command != "serve":
            # Standard output is for the result.
            configure("debug" if settings.server.log_level == "debug" else "warning", stream=sys.stderr)
        match arguments.command:
            case "serve":
                from app.cli.serve import serve

                serve(settings)
            case "chat":
                from app.cli.chat import chat

                return chat(settings, arguments)
            case "migrate":
                from app.cli.upkeep import migrate

                return migrate(settings)
            case "check":
                from app.cli.upkeep import check

                files = [(kind, path) for kind in ("nginx", "kubernetes", "compose") for path in getattr(arguments, kind)]
                return check(settings, files)
            case "probe":
                from app.cli.chat import key_of
                from app.cli.probe import probe

                return probe(arguments.url, key_of(arguments), settings.timeouts, arguments)
            case _:
                from app.cli.keys import keys

                return keys(settings, arguments)
    except EarlybyteError as error:
        words = mask(error.message)
        # Not all sentences are ours to the end: some close with the words of a foreign error.
        print(f"earlybyte: {words}{'' if words.endswith(('.', '?', '!')) else '.'}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read along has gone; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # A mistake of ours or of a module of the user's: named in one sentence; the trace is for whoever looks for it.
        if settings is not None and settings.server.log_level == "debug":
            raise
        print(
            f"earlybyte: unexpected {type(error).__name__}: {mask(str(error)).splitlines()[0] if str(error) else ''}; "
            "EARLYBYTE_SERVER__LOG_LEVEL=debug shows where.",
            file=sys.stderr,
        )
        return 1
