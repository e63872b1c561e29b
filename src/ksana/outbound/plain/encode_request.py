"""The request as the plain client sends it: where a URL leads, and the bytes libcurl would send.

What libcurl treats in a way of its own is not copied: then there is no route, or no encoding, and
the call goes to libcurl.
"""

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from ksana.base.short_cache import cache_short
from ksana.domain.tasks.headers import split_url
from ksana.outbound.curl.handle import BAD_HEADER, METHOD, NEEDS_LENGTH, USER_AGENT
from ksana.outbound.resolver import is_literal
from ksana.ports.caller import Request

_PARTS = re.compile(r"[^:]+://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>[^#]*)")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_DOTS = re.compile(r"/(?:\.|%2e)", re.IGNORECASE)
"""Where a dot segment may begin, which libcurl would start_if_plain out of the path."""
_ODD_NAMES: Final = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "expect",
        "te",
        "upgrade",
        "keep-alive",
        "trailer",
    }
)
"""They change how a request is sent. Users may not set most of them; what we send ourselves never
has them."""


class PlainRoute:
    """A URL that the plain client can call: the origin, and the first lines by method."""

    __slots__ = ("_host_line", "_path", "addresses", "host", "origin", "port", "starts")

    def __init__(self, host: str, port: int, named: str, path: str) -> None:
        self.host = host
        self.port = port
        self.origin = (host, port)
        # An address stands for itself; a name is looked up.
        self.addresses: tuple[str, ...] | None = (host,) if is_literal(host) else None
        self.starts: dict[str, str] = {}
        self._path = path
        self._host_line = f"Host: {named}" if port == 80 else f"Host: {named}:{port}"

    def write_start(self, method: str) -> str:
        """Write the request line and the Host header. Raise ValueError for what is no method."""
        if not METHOD.match(method):
            raise ValueError(f"{method[:32]!r} is not a method")
        start = self.starts[method] = f"{method} {self._path} HTTP/1.1\r\n{self._host_line}\r\n"
        return start


@cache_short(maxsize=4096, longest=512)
def find_route(url: str) -> PlainRoute | None:
    """Find where a URL leads, or None if it is not for this client. Raise ValueError if it cannot
    be called at all."""
    target = split_url(url)
    parts = _PARTS.match(target.url)
    if target.scheme != "http" or parts is None or _DOTS.search(parts["path"]):
        return None
    host = target.host
    if is_literal(host) and not _is_plain_address(host):
        return None
    authority = parts["authority"]
    named = f"[{host}]" if ":" in host else authority.partition(":")[0]
    # libcurl writes escapes of the path, not of the query, in capitals; signatures are made of what
    # is sent.
    path = _ESCAPE.sub(lambda escape: escape[0].upper(), parts["path"] or "/")
    return PlainRoute(host, target.port, named, path + parts["query"])


def encode_request(route: PlainRoute, request: Request) -> bytes | None:
    """Write the whole request, or None if it is not for this client. Raise ValueError for what may
    not leave."""
    method, body, headers = request.method, request.body, request.headers
    names, values = zip(*headers, strict=True) if headers else ((), ())
    form = _write_form(names)
    if form is None:
        return None
    text = "".join(values)
    if not text.isprintable() and BAD_HEADER.search(text):
        raise ValueError("a header holds a control character")
    start = route.starts.get(method) or route.write_start(method)
    if body is not None and method != "HEAD":
        return f"{start}{form % values}Content-Length: {len(body)}\r\n\r\n".encode() + body
    length = "Content-Length: 0\r\n" if method in NEEDS_LENGTH else ""
    return f"{start}{form % values}{length}\r\n".encode()


@lru_cache(maxsize=1024)
def _write_form(names: tuple[str, ...]) -> str | None:
    """Write the header lines with room for the values; a task has the same names every time."""
    lower = {name.lower() for name in names}
    if not _ODD_NAMES.isdisjoint(lower):
        return None
    if BAD_HEADER.search("".join(names)):
        raise ValueError("a header holds a control character")
    lines = [name.replace("%", "%%") + ": %s\r\n" for name in names]
    if "user-agent" not in lower:
        lines.append(f"User-Agent: {USER_AGENT}\r\n")
    if "accept" not in lower:
        lines.append("Accept: */*\r\n")
    return "".join(lines)


def _is_plain_address(host: str) -> bool:
    """Tell whether an address is in its plainest spelling, the one that libcurl would turn any
    other into."""
    try:
        return str(ip_address(host)) == host
    except ValueError:
        return False
