"""Tools: plain functions that a model may call, with what surrounds a call. Knows nothing of turns or storage."""

from app.tools.context import ToolContext
from app.tools.errors import ProcessCancelled, ProcessTimeout, ToolError, ToolOver
from app.tools.process import ProcessResult
from app.tools.tool import Tool, tool

__all__ = [
    "ProcessCancelled",
    "ProcessResult",
    "ProcessTimeout",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOver",
    "tool",
]
