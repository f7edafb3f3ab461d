"""The ASGI application: routes, problem handlers, lifespan; nothing else.

`earlybyte serve` and `uvicorn app.main:app` run the same thing.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import anyio
import anyio.abc
from fastapi import FastAPI
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from app import bootstrap
from app.api import openapi, problems
from app.api.cors import ExactOrigins
from app.api.edge import Edge
from app.api.routes import admin, conversations, demo, docs, events, health, messages, session, turns
from app.config import Settings

Handler = Callable[[int, FrameType | None], Any]


def create_app(settings: Settings) -> FastAPI:
    """The application for these settings; its parts open with its lifespan."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Our own drain ends the streams; the library's would cut them, and its flag would outlive this application.
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
        async with bootstrap.open_service(settings) as service, anyio.create_task_group() as group:
            app.state.service = service
            with _drain_before_stop(lambda: bootstrap.drain(service), group):
                yield
            await bootstrap.drain(service)
            group.cancel_scope.cancel()

    app = _Application(
        title="Earlybyte",
        version="0.1.0",
        summary="Turns of tool-using agents, streamed as typed events.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        # Its own spans would hold the query of each URL, and that may be a ticket.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        openapi_tags=[{"name": name} for name in ("conversations", "turns", "messages", "session", "admin", "operation")],
    )
    routers = [part.router for part in (conversations, turns, events, messages, session, admin, health, docs, demo)]
    for router in routers:
        app.include_router(router)
    problems.install(app, [*app.routes, *(route for router in routers for route in router.routes)])
    app.add_middleware(
        Edge,
        service=lambda: app.state.service,
        body_bytes=settings.limits.body_bytes,
        body_seconds=settings.timeouts.request,
    )
    if settings.server.cors_origins:
        app.add_middleware(
            ExactOrigins,
            allow_origins=list(settings.server.cors_origins),
            allow_credentials=True,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "traceparent", "tracestate"],
            expose_headers=["Location", "Retry-After"],
        )
    openapi.install(app)
    return app


class _Application(FastAPI):
    """Keeps the server's own `send`: the layers above a route only watch for the start of the answer, and a stream's frames
    go past them.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the lifespan."""
        scope["earlybyte.send"] = send
        await super().__call__(scope, receive, send)


class _drain_before_stop:  # noqa: N801 - used as a context manager function
    """Around the life of the service: the first SIGTERM or SIGINT drains, and only then goes on to uvicorn.

    uvicorn closes its listener at the signal; a drain wants it open to the end. A second signal changes nothing.
    """

    def __init__(self, drain: Callable[[], Any], group: anyio.abc.TaskGroup) -> None:
        self._drain = drain
        self._group = group
        self._old: dict[int, Any] = {}
        self._draining = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            old = signal.getsignal(number)
            # Only where somebody (uvicorn) waits for the signal: a test runner's own handling stays as it is.
            if callable(old) and old is not signal.default_int_handler:
                self._old[number] = old
                signal.signal(number, lambda n, frame: self._caught(n, frame, loop))

    def _caught(self, number: int, frame: FrameType | None, loop: asyncio.AbstractEventLoop) -> None:
        if not self._draining:
            self._draining = True
            loop.call_soon_threadsafe(self._group.start_soon, self._drain_then, number, frame)

    async def _drain_then(self, number: int, frame: FrameType | None) -> None:
        try:
            await self._drain()
        finally:
            self._old[number](number, frame)

    def __exit__(self, *_: object) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)


def __getattr__(name: str) -> FastAPI:
    """`app`, made from the configuration when `uvicorn app.main:app` asks for it."""
    if name == "app":
        return create_app(Settings.load())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
