"""Which pages of other origins may call the API: those that `server.cors_origins` names, letter for letter (A3)."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from app.api.problems import problem


class ExactOrigins(CORSMiddleware):
    """The library's middleware, silent towards everybody else: a foreign page gets no CORS header at all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what does not come from another origin, or from one that is not named."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not self.is_allowed_origin(origin):
                if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                    refused = problem(403, "forbidden", "This origin is not in server.cors_origins.")
                    await refused(scope, receive, send)
                else:
                    await self.app(scope, receive, send)
                return
        await super().__call__(scope, receive, send)
