"""The listening socket: bound before anything else starts, so that a taken port is the first thing
said."""

import contextlib
import errno
import ipaddress
import socket
import sys
from typing import Final

from ksana.base.errors import SetupError

_ACCEPTS_IN_A_TURN: Final = 8
"""A connection that comes alone costs as many looks at the line, a microsecond each."""

_BACKLOG: Final = 16_384
"""The kernel takes its own bound if it is less."""


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen. Raise SetupError saying why it cannot be."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SetupError(
            f"The address {host!r} cannot be found: {error.strerror or error}."
        ) from None
    # IPv4 first where a name has both, as most clients of a local server try it.
    family, kind, protocol, _, address = min(infos, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise SetupError(f"Cannot listen on {host}:{port}: {_reason(error)}") from None
    return listener


def share_listener(listener: socket.socket) -> list[socket.socket]:
    """The listener, several times. uvloop accepts one connection of a listener in a turn of its
    loop: in a storm of connections the line in the kernel would hardly move. Each of these accepts
    one; all are the same line."""
    if sys.platform == "win32":  # no uvloop there
        return [listener]
    return [listener, *(listener.dup() for _ in range(_ACCEPTS_IN_A_TURN - 1))]


def describe_address(host: str, listener: socket.socket) -> str:
    """The URL at which the server is reached."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than localhost is taken as
    reachable."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is taken by another program; choose another with PORT or --port."
    if error.errno == errno.EACCES:
        return "this user may not use that port; choose one above 1023."
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address."
    return f"{error.strerror or error}."
