"""Tools: plain functions that a model may call, with what surrounds a call. Knows nothing of turns or storage."""

from app.tools.tool import Tool, ToolContext, ToolError, tool

__all__ = ["Tool", "ToolContext", "ToolError", "tool"]
