"""A proxy that breaks streams in the ways that real ones do, one way at a time."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Breaks:
    """What the proxy does wrong. `hold` keeps a body back until its end; `cut_after` ends it after so many idle seconds.

    `reset_after` resets the connection after so many bytes of a stream's answer; 0: when the service has begun to answer.
    """

    hold: bool = False
    compress: bool = False
    cut_after: float | None = None
    drop_headers: tuple[str, ...] = ()
    allow_all: bool = False
    answer_as: str | None = None
    reset_after: int | None = None


@contextmanager
def breaking_proxy(port: int, breaks: Breaks) -> Iterator[int]:
    """The port of a proxy before `port` that does what `breaks` says."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(server, port, breaks), daemon=True).start()
    try:
        yield int(server.getsockname()[1])
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _accept(server: socket.socket, port: int, breaks: Breaks) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(client, port, breaks), daemon=True).start()


def _serve(client: socket.socket, port: int, breaks: Breaks) -> None:
    with client, suppress(OSError):
        head, rest = _head(client)
        if not head:
            return
        lines = head.decode("latin-1").split("\r\n")
        dropped = {name.lower() for name in breaks.drop_headers} | {"connection"}
        kept = [
            lines[0],
            *(line for line in lines[1:] if line.partition(":")[0].lower() not in dropped),
            "Connection: close",
        ]
        length = next((int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")), 0)
        while len(rest) < length:
            rest += client.recv(65536)
        with socket.create_connection(("127.0.0.1", port)) as service:
            service.sendall("\r\n".join(kept).encode("latin-1") + b"\r\n\r\n" + rest)
            _answer(client, service, breaks)


def _answer(client: socket.socket, service: socket.socket, breaks: Breaks) -> None:
    head, body = _head(service)
    text = head.decode("latin-1")
    stream = "text/event-stream" in text
    if breaks.allow_all:
        text += "\r\nAccess-Control-Allow-Origin: *"
    if stream and breaks.reset_after is not None:
        if breaks.reset_after:
            client.sendall(text.encode("latin-1") + b"\r\n\r\n" + (body or service.recv(65536))[: breaks.reset_after])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    if not stream or not (breaks.hold or breaks.compress or breaks.cut_after or breaks.answer_as):
        client.sendall(text.encode("latin-1") + b"\r\n\r\n" + body)
        _relay(client, service, None)
        return
    if breaks.answer_as:
        text = text.replace("text/event-stream", breaks.answer_as)
    if breaks.cut_after:
        client.sendall(text.encode("latin-1") + b"\r\n\r\n" + body)
        _relay(client, service, breaks.cut_after)
        return
    if breaks.hold or breaks.compress:
        whole = _dechunked(body + _all(service))
        lines = [line for line in text.split("\r\n") if not line.lower().startswith("transfer-encoding")]
        if breaks.compress:
            whole = gzip.compress(whole)
            lines.append("Content-Encoding: gzip")
        lines.append(f"Content-Length: {len(whole)}")
        client.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + whole)
        return
    client.sendall(text.encode("latin-1") + b"\r\n\r\n" + body)
    _relay(client, service, None)


def _relay(client: socket.socket, service: socket.socket, idle: float | None) -> None:
    service.settimeout(idle)
    with suppress(TimeoutError):
        while piece := service.recv(65536):
            client.sendall(piece)


def _head(sock: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return b"", b""
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def _dechunked(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size or b"0", 16)
        out, data = out + data[:count], data[count + 2 :]
    return out
