"""The demo chat page and its files, under a policy that lets nothing in but what is ours."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

router = APIRouter(include_in_schema=False)

_FOLDER = Path(__file__).parent.parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# `https:` pictures are those of `image` events and cards, whose URLs come from tools; see `app.api.markdown` for the rest.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: https:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`, which would turn the Origin of some requests into `null`, and A3 wants a right one.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The browser asks each time and is told 304: a new release is never mixed with an old one's files.
    "Cache-Control": "no-cache",
}


class _File(NamedTuple):
    body: bytes
    media_type: str
    etag: str


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """The chat page."""
    return _answer(request, _files()["index.html"])


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
async def static(request: Request, name: str) -> Response:
    """One script, style or picture of the page; 404 for any name that is not one of its files."""
    found = _files().get(name)
    return _answer(request, found) if found else Response(status_code=404, headers=_HEADERS)


@cache
def _files() -> dict[str, _File]:
    """The page's files by name, read once; a name that is no key touches no disk, so there is no path to climb."""
    files = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            files[path.name] = _File(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return files


def _answer(request: Request, file: _File) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)
