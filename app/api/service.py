"""What the routes work with: one object, built by `app.bootstrap` and kept in the application's state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, cast

import anyio
from fastapi import Depends, Request

from app.api.auth import Gate, Principal
from app.api.problems import WrongRole
from app.api.tickets import Tickets
from app.api.viewers import Viewers
from app.store.lease import Lease
from app.turns.parts import Parts
from app.turns.supervisor import Supervisor


@dataclass(frozen=True, kw_only=True)
class Service:
    """The parts of the running service."""

    parts: Parts
    supervisor: Supervisor
    gate: Gate
    tickets: Tickets
    viewers: Viewers
    # The right to run turns on the store; None where `server.role` is `api`.
    lease: Lease | None
    # Around each wait for a piece of a body; the end of the drain cancels them.
    reading: set[anyio.CancelScope] = field(default_factory=set)

    def check_runs_turns(self) -> None:
        """Nothing, when this process runs turns and serves their streams.

        Raises:
            WrongRole: its `server.role` is `api`.
        """
        if self.lease is None:
            raise WrongRole

    @property
    def draining(self) -> bool:
        """Whether the process is on its way out."""
        return self.supervisor.draining


async def service_of(request: Request) -> Service:
    """The running service of a request's application."""
    return cast(Service, request.app.state.service)


async def principal_of(request: Request) -> Principal:
    """Who asks.

    Raises:
        app.api.problems.Unauthenticated, app.api.problems.Forbidden: they may not come in.
    """
    return await (await service_of(request)).gate.authenticate(request)


Running = Annotated[Service, Depends(service_of)]
Asker = Annotated[Principal, Depends(principal_of)]
