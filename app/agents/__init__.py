"""Thinking: how an agent, ours or a user's own, is run and what it may see and do.

An agent never touches storage or sockets: it speaks to its turn through the `Stage` port, which `app.turns` stands behind.
"""

from app.agents.context import AgentContext, ToolCallFailed, Transient, TurnOver

__all__ = ["AgentContext", "ToolCallFailed", "Transient", "TurnOver"]
