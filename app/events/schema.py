"""The JSON Schema of every event, for clients that check or generate types."""

from __future__ import annotations

from typing import Any

import msgspec

from app.events.codec import KNOWN


def schema() -> dict[str, Any]:
    """One JSON Schema (2020-12) whose `oneOf` are all events, told apart by `type`; later fields are allowed."""
    schemas, components = msgspec.json.schema_components(KNOWN, ref_template="#/$defs/{name}")
    for part in components.values():
        properties = part.get("properties")
        if properties is not None and "type" in properties and "seq" in properties:
            properties["seq"] = {"type": "integer", "minimum": 1}
            properties["ts"] = {"type": "integer", "description": "Epoch milliseconds."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Earlybyte events, protocol 1",
        "oneOf": list(schemas),
        "$defs": components,
    }
