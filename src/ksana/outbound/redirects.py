"""The next hop of a redirect, as browsers take it. Pure; the hop passes the same egress rules as
the first."""

from typing import Final
from urllib.parse import urljoin

import msgspec

from ksana.domain.tasks.headers import Target, split_url
from ksana.ports.caller import Request

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MAX_HOPS: Final = 5

CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})
"""Meant for one host; they never travel to another."""
_OF_THE_BODY: Final = ("content-",)


def read_location(raw: bytes) -> str:
    """Read the address of the next hop; bytes that are no text are written as browsers send them,
    in percent."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in raw)


def join_location(url: str, raw: bytes) -> str:
    """Resolve a Location header against the URL that sent it. Raise ValueError if nothing can be
    made of it."""
    path, mark, query = read_location(raw).partition("?")
    return urljoin(url, path.replace(" ", "%20") + mark + query.replace(" ", "+"))


def next_hop(request: Request, status: int, url: str) -> Request:
    """Build the request that follows a redirect. Raise ValueError if `url` cannot be called."""
    target = split_url(url)
    method, body, headers = request.method, request.body, request.headers
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", None
        headers = tuple(pair for pair in headers if not pair[0].lower().startswith(_OF_THE_BODY))
    if not _is_same_origin(split_url(request.url), target):
        headers = tuple(pair for pair in headers if pair[0].lower() not in CREDENTIALS)
    return msgspec.structs.replace(request, method=method, url=url, headers=headers, body=body)


def _is_same_origin(here: Target, there: Target) -> bool:
    if here.host != there.host:
        return False
    upgraded = (here.scheme, here.port, there.scheme, there.port) == ("http", 80, "https", 443)
    return upgraded or (here.scheme == there.scheme and here.port == there.port)
