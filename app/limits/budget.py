"""The time ladder: every timeout is shorter than the one around it (PROTOCOL 6, B1).

A timeout that outlives the one around it never fires: the outer one kills the work and nobody learns why. So the ladder
is checked before anything starts, and a broken one is refused with both names, both values and the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.errors import ConfigError

RULE = "every timeout is shorter than the one around it"


def number(value: object) -> object:
    """The value as it came, unless it is a truth value, which would silently count as 0 or 1.

    Raises:
        ValueError: it is `true` or `false`.
    """
    if isinstance(value, bool):
        raise ValueError("Input should be a number")  # noqa: TRY004 - pydantic turns a ValueError into its own error
    return value


Seconds = Annotated[float, BeforeValidator(number), Field(gt=0, allow_inf_nan=False)]


class Timeouts(BaseModel):
    """The rungs of the ladder, in seconds. None of them can be switched off: a wait without an end is a leak."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # One run of a tool that names no timeout of its own. Long enough for a slow web call.
    tool: Seconds = 30
    # One turn, from `turn_started`; waits for an approval or in a queue do not count (B4).
    turn: Seconds = 120
    # Any request that is not a stream; also an active turn with its save.
    request: Seconds = 130
    # How long running turns may go on after SIGTERM.
    drain: Seconds = 135
    # The server's graceful stop, after the drain.
    shutdown: Seconds = 140
    # What the supervisor (systemd, Kubernetes, Docker) grants before SIGKILL. Not enforced here: set it there, too.
    kill: Seconds = 160
    # Up to the first token of a model call. Reasoning models take their time.
    model_first_token: Seconds = 30
    # Between two tokens of a model call. A healthy stream never pauses for long.
    model_between_tokens: Seconds = 20
    # Silence on a stream before a keep-alive comment is sent.
    keep_alive: Seconds = 15
    # Silence after which a client counts the connection as dead: three keep-alives.
    client_watchdog: Seconds = 45
    # The read timeout of the proxy in front (nginx `proxy_read_timeout`): five keep-alives. Not enforced here.
    proxy_read: Seconds = 75
    # The idle timeout of the load balancer in front. Not enforced here.
    lb_idle: Seconds = 120
    # How long an idle connection is kept: longer than the balancer, or it sends requests into a closing connection.
    server_keep_alive: Seconds = 130
    # A write to a viewer whose peer takes nothing.
    viewer_write: Seconds = 10
    # The kernel's limit for data that the peer does not acknowledge (TCP_USER_TIMEOUT).
    tcp_user: Seconds = 30
    # The end of a turn that is kept for the answer and its save; no tool may use it (B2).
    reserve: Seconds = 10
    # How long a person may think about an approval.
    approval: Seconds = 600
    # The age at which a stream is closed as `rotated`, so that balancers can spread the load anew (R8).
    connection_age: Seconds = 600
    # How often the text of a running turn is stored; a crash costs at most this much of it.
    checkpoint: Seconds = 1


# Each chain from the inside out; neighbours are compared.
_CHAINS = (
    ("tool", "turn", "request", "drain", "shutdown", "kill"),
    ("keep_alive", "client_watchdog", "proxy_read", "lb_idle", "server_keep_alive"),
    ("viewer_write", "tcp_user"),
    ("reserve", "turn"),
    ("model_first_token", "turn"),
    ("model_between_tokens", "turn"),
)


def check(timeouts: Timeouts) -> None:
    """Accept a ladder in which every rung is shorter than the one around it (B1).

    Raises:
        ConfigError: names the first two rungs that break the rule, their values and the rule.
    """
    for chain in _CHAINS:
        for inner, outer in pairwise(chain):
            inside, outside = getattr(timeouts, inner), getattr(timeouts, outer)
            if inside >= outside:
                raise ConfigError(
                    f"timeouts.{inner} = {show(inside)} must be shorter than timeouts.{outer} = {show(outside)}: {RULE}."
                )


def margins(timeouts: Timeouts) -> list[tuple[str, float, str, float, float]]:
    """Every rule of the ladder: inner rung, its value, the rung around it, its value, and the margin; all in seconds."""
    return [
        (inner, inside := getattr(timeouts, inner), outer, outside := getattr(timeouts, outer), outside - inside)
        for chain in _CHAINS
        for inner, outer in pairwise(chain)
    ]


def check_tools(tools: Iterable[tuple[str, float | None]], timeouts: Timeouts) -> None:
    """Accept tools whose own timeout, in seconds, fits into a turn without its reserve (B1).

    A tool without one (None) gets `timeouts.tool`, which B2 cuts to what is left; it needs no check.

    Raises:
        ConfigError: names the tool, its timeout and what it must fit into.
    """
    room = timeouts.turn - timeouts.reserve
    for name, timeout in tools:
        if timeout is not None and timeout > room:
            raise ConfigError(
                f"The tool {name} has timeout = {show(timeout)}, which must not exceed "
                f"timeouts.turn - timeouts.reserve = {show(room)}: {RULE}."
            )


def show(seconds: float) -> str:
    """The number as a person would have written it: `120`, not `120.0`."""
    return str(int(seconds)) if float(seconds).is_integer() else f"{seconds:.12g}"
