"""What OpenAPI says beyond the routes: the problem document, and how callers show who they are (PROTOCOL 7)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from app.api import schemas
from app.api.auth import COOKIE
from app.api.service import Service

_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "A browser that has signed in."},
}


def install(app: FastAPI) -> None:
    """Have the application's OpenAPI document tell the whole truth."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        document["components"].setdefault("schemas", {})["Problem"] = schemas.Problem.model_json_schema()
        service: Service = app.state.service
        if not service.gate.keyless:
            document["components"]["securitySchemes"] = _SCHEMES
            for operation in _operations(document):
                if "401" in operation["responses"] and operation["operationId"] != "sign_in":
                    operation["security"] = [{name: []} for name in _SCHEMES]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]
