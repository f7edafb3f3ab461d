"""Whether the process lives, whether it can run a turn, and what it counts. No key needed (A4)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from app.api import schemas
from app.api.service import Running
from app.clock import monotonic
from app.events.schema import schema
from app.observability.metrics import CONTENT_TYPE, render

router = APIRouter(tags=["operation"])
# A store that has been down for longer makes the process not ready.
STORE_PATIENCE_SECONDS = 30.0


@router.head("/livez", include_in_schema=False)
@router.get("/livez", response_model=schemas.Health)
async def livez() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=schemas.Health, responses={503: {"model": schemas.Health, "description": "Not now."}})
async def readyz(service: Running) -> Response:
    """Able to run a turn: not draining, and the store has not been down for 30 s."""
    down_since = service.parts.store.down_since
    if service.draining:
        return JSONResponse({"status": "draining"}, status_code=503)
    if down_since is not None and monotonic() - down_since > STORE_PATIENCE_SECONDS:
        return JSONResponse({"status": "store_down"}, status_code=503)
    return JSONResponse({"status": "ok"})


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics() -> Response:
    """Prometheus metrics."""
    return Response(render(), media_type=CONTENT_TYPE)


@router.get("/v1/schema/events.json")
async def events_schema() -> dict[str, Any]:
    """JSON Schema of every event."""
    return schema()
