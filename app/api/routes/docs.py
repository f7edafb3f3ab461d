"""The API's own pages: OpenAPI in Swagger UI, with scripts and styles that we serve (a package brings them)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import fastapi_offline
from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse

router = APIRouter(include_in_schema=False)

_FOLDER = Path(fastapi_offline.__file__).parent / "static"
# FastAPI's page starts Swagger UI by a script of its own inside the page.
_POLICY = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API, to read and to try."""
    root = request.scope.get("root_path", "")
    page = get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title="Earlybyte API",
        swagger_js_url=f"{root}/docs/swagger-ui-bundle.js",
        swagger_css_url=f"{root}/docs/swagger-ui.css",
        swagger_favicon_url=f"{root}/static/favicon.svg",
    )
    page.headers["Content-Security-Policy"] = _POLICY
    return page


@router.get("/docs/{name}")
async def file(name: Literal["swagger-ui-bundle.js", "swagger-ui.css"]) -> Response:
    """One of Swagger UI's two files."""
    return FileResponse(_FOLDER / name, headers={"Cache-Control": "public, max-age=86400"})
