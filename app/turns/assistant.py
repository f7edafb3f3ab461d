"""A profile made ready: its model or agent, its tools and its hooks, loaded once at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.config import Profile
from app.hooks.chain import HookChain
from app.providers.provider import Provider, ToolSpec
from app.tools.tool import Tool


@dataclass(frozen=True, kw_only=True)
class Assistant:
    """What answers a turn: exactly one of `provider` (the built-in loop) and `agent` (a user's own function)."""

    name: str
    profile: Profile
    hooks: HookChain
    provider: Provider | None = None
    agent: Callable[..., Any] | None = None
    tools: Mapping[str, Tool] = field(default_factory=dict)

    @property
    def tool_specs(self) -> list[ToolSpec]:
        """The tools as a model is told of them."""
        return [ToolSpec(name=t.name, description=t.description, schema=t.schema) for t in self.tools.values()]
