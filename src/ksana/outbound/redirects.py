"""What may follow a request inside one attempt: the same once more, or the next hop of a redirect,
as browsers take it. Pure; a hop passes the same egress rules as the first."""

from typing import Final
from urllib.parse import urljoin

import msgspec

from ksana.domain.secrets import Secrets
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


def show_url(request: Request, url: str) -> str:
    """The address of a hop for an error text, its secrets masked and its length bounded."""
    return (url if request.secrets is None else request.secrets.mask(url))[:200]


def next_hop(request: Request, status: int, url: str) -> Request:
    """Build the request that follows a redirect. Raise ValueError if `url` cannot be called."""
    target = split_url(url)
    method, body, headers = request.method, request.body, request.headers
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", None
        headers = tuple(pair for pair in headers if not pair[0].lower().startswith(_OF_THE_BODY))
    if not _is_same_origin(split_url(request.url), target):
        headers = _leave_behind(headers, request.secrets)
        _refuse_secrets(request.secrets, url, body)
    return msgspec.structs.replace(request, method=method, url=url, headers=headers, body=body)


def _leave_behind(
    headers: tuple[tuple[str, str], ...], secrets: Secrets | None
) -> tuple[tuple[str, str], ...]:
    """The headers that may go to another origin."""
    if secrets is None:
        return tuple(pair for pair in headers if pair[0].lower() not in CREDENTIALS)
    return tuple(
        (name, value)
        for name, value in headers
        if name.lower() not in secrets.names and not secrets.are_in(value.encode())
    )


def _refuse_secrets(secrets: Secrets | None, url: str, body: bytes | None) -> None:
    if secrets is None:
        return
    if body is not None and (secrets.is_body_secret or secrets.are_in(body)):
        raise ValueError("it is another origin, and the body holds a secret or a callback token")
    if secrets.are_in(url.encode()):
        raise ValueError("it is another origin, and the address holds a secret or a callback token")


def _is_same_origin(here: Target, there: Target) -> bool:
    if here.host != there.host:
        return False
    upgraded = (here.scheme, here.port, there.scheme, there.port) == ("http", 80, "https", 443)
    return upgraded or (here.scheme == there.scheme and here.port == there.port)


_REPEATABLE_METHODS: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods whose second request leaves the target as the first did (RFC 9110, 9.2.2)."""


def can_send_again(request: Request) -> bool:
    """Tell whether a request that was written may be sent again, once, when its kept connection
    ended before a byte of the answer. The target may have acted on it: nobody can know."""
    return request.may_resend and request.method in _REPEATABLE_METHODS
