"""What a server lets us see of the connection behind an ASGI `send`: how much of what was sent the peer has yet to take."""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from typing import Any

from starlette.types import Send

if sys.platform != "win32":
    import fcntl
    import termios


def untaken(send: Send | None) -> int | None:
    """Bytes that the peer has not acknowledged, in the server's buffer and in the kernel's; None where that is not known.

    uvicorn's `send` belongs to an object that has the transport; another server's may not, and then a slow peer cannot be
    told from a stuck one.
    """
    transport: Any = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is None or sys.platform == "win32":
        return None
    with suppress(AttributeError, OSError, ValueError):
        sock = transport.get_extra_info("socket")
        [in_kernel] = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
        return int(transport.get_write_buffer_size()) + int(in_kernel)
    return None
