"""Signing a browser in and out, for the demo page and other pages of the same origin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from fastapi.responses import JSONResponse

from app.api import documents, schemas
from app.api.auth import COOKIE, SESSION_MS, is_loopback
from app.api.service import Running

router = APIRouter(tags=["session"])


@router.post(
    "/v1/session",
    response_model=schemas.Session,
    responses=documents.problems(401, 403, 408, 413, 422, 503),
)
async def sign_in(request: Request, service: Running, body: Annotated[schemas.SignIn, Body()]) -> Response:
    """Sign this browser in with an API key, by an HttpOnly cookie."""
    if request.headers.get("origin") is not None:
        service.gate.check_origin(request)
    principal, token = await service.gate.open_session(body.key)
    response = JSONResponse({"user_id": principal.user_id, "role": principal.role})
    response.set_cookie(
        COOKIE,
        token,
        max_age=SESSION_MS // 1000,
        path="/",
        httponly=True,
        samesite="lax",
        secure=not is_loopback(request.url.hostname or ""),
    )
    return response


@router.delete("/v1/session", status_code=204, responses=documents.problems(403, 503))
async def sign_out(request: Request, service: Running) -> Response:
    """Sign this browser out; harmless when it is not signed in."""
    token = request.cookies.get(COOKIE)
    if token:
        service.gate.check_origin(request)
        await service.gate.close_session(token)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
    return response
