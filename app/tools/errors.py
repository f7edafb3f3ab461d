"""What can go wrong in a tool call. The messages are for the model: one plain sentence, no stack, no secret."""

from __future__ import annotations

from app.errors import EarlybyteError


class ToolError(EarlybyteError):
    """The tool failed. Raise it in a tool to tell the model, word for word, what went wrong."""

    code = "tool_error"


class ToolOver(ToolError):
    """This tool call is over; what it still has to say cannot be shown any more."""

    code = "tool_over"


class ProcessTimeout(ToolError):
    """The child process took too long and was killed."""

    code = "process_timeout"


class ProcessCancelled(ToolOver):
    """The child process was killed because the call was cancelled."""

    code = "process_cancelled"
