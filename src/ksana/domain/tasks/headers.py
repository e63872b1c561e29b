"""What a user may ask us to send: methods, URLs and headers, checked when they are stored and again
when they leave.

Pure. Whether the address behind a URL may be reached is not decided here; the egress rules judge
that at connect time.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from ksana.base.errors import InvalidError
from ksana.base.short_cache import cache_short

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
MAX_URL: Final = 2048
MAX_HEADERS: Final = 64

FORBIDDEN_NAMES: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""The transport sets these itself; a second value would let a body pass for another request."""
FORBIDDEN_PREFIXES: Final = ("proxy-", "x-ksana-", "webhook-")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}\Z", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Control bytes but the tab, and halves of surrogate pairs, which no encoding can carry."""
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]")
_PLACEHOLDER = re.compile(r"\{\{[^{}]*\}\}")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/?#]*@)?(?P<host>\[[^\]/?#]*\]|[^:/?#\[\]]*)"
    r"(?P<port>:[^/?#]*)?(?P<rest>(?:[/?#].*)?)\Z"
)
_HOST = re.compile(r"[A-Za-z0-9._~-]+\Z", re.ASCII)
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]\Z", re.ASCII)
_KEPT_IN_URL: Final = "/?#[]@!$&()*+,;=:%~|{}<>^`\"'\\"
"""What percent-encoding leaves alone: everything that an ASCII URL may hold as it is."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """A URL taken apart: `host` in lower case, ASCII, without brackets or a final dot; `url` is
    safe to hand on."""

    scheme: str
    host: str
    port: int
    url: str


def check_method(method: str, *, field: str = "method") -> None:
    """Raise InvalidError unless the method is one of those we send."""
    if method not in METHODS:
        raise InvalidError(f"method must be one of {', '.join(METHODS)}", field=field)


def check_url(url: str, *, field: str = "url") -> None:
    """Raise InvalidError unless the URL is http or https, whole, and short enough. `{{name}}` may
    stand inside."""
    if len(url) > MAX_URL:
        raise InvalidError(f"the URL is longer than {MAX_URL} characters", field=field)
    # A digit is right in a host, a port and a path alike, so one stand-in serves wherever a
    # placeholder may be.
    wrong = find_url_fault(_PLACEHOLDER.sub("1", url))
    if wrong is not None:
        raise InvalidError(wrong, field=field)


def find_url_fault(url: str) -> str | None:
    """Say what is wrong with a URL, or None."""
    try:
        split_url(url)
    except ValueError as error:
        return str(error)
    return None


@cache_short(maxsize=4096, longest=512)
def split_url(url: str) -> Target:
    """Take a URL apart, so strictly that no other parser can see another host in it. Raise
    ValueError saying why."""
    if _NOT_IN_URL.search(url):
        raise ValueError("the URL holds a space or a control character")
    match = _URL.match(url)
    if match is None:
        raise ValueError("the URL must be absolute, such as https://example.com/path")
    scheme = match["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        raise ValueError(f"the URL must start with http:// or https://, not {scheme[:32]}://")
    if match["user"] is not None:
        raise ValueError(
            "the URL may not carry a user name or password; send an Authorization header"
        )
    port = _read_port(match["port"], _DEFAULT_PORTS[scheme])
    host = _read_host(match["host"])
    rest = match["rest"]
    if url.isascii() and not host.endswith("."):
        return Target(scheme, host.strip("[]"), port, url)
    # A final dot changes nothing for the resolver, yet caches and servers would take it for another
    # host.
    host = host.rstrip(".")
    url = f"{scheme}://{host}{match['port'] or ''}{quote(rest, safe=_KEPT_IN_URL)}"
    return Target(scheme, host.strip("[]"), port, url)


def check_headers(headers: Mapping[str, str], *, field: str = "headers") -> None:
    """Raise InvalidError unless every header may be set by a user and can be sent as it stands."""
    if len(headers) > MAX_HEADERS:
        raise InvalidError(
            f"at most {MAX_HEADERS} headers are allowed, not {len(headers)}", field=field
        )
    for name, value in headers.items():
        wrong = find_header_fault(name, value)
        if wrong is None and is_reserved(name):
            wrong = f"the header {name} is set by Ksana and cannot be given"
        if wrong is not None:
            raise InvalidError(wrong, field=field)


def find_header_fault(name: str, value: object) -> str | None:
    """Say why a header cannot be sent, or None. Names follow the token grammar; values hold no
    control bytes."""
    if not _TOKEN.match(name):
        return f"{name[:64]!r} is not a header name: letters, digits and -_.!#$%&'*+^`|~ only"
    if not isinstance(value, str):
        return f"the header {name} must be a string"
    if _CONTROL.search(value):
        return f"the header {name} holds a control character (CR, LF and NUL are never allowed)"
    return None


def is_reserved(name: str) -> bool:
    """Tell whether only Ksana sets this header."""
    lower = name.lower()
    return lower in FORBIDDEN_NAMES or lower.startswith(FORBIDDEN_PREFIXES)


def _read_port(text: str | None, default: int) -> int:
    if text is None or text == ":":
        return default
    digits = text[1:]
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) < 65_536
    ):
        raise ValueError("the port in the URL must lie between 1 and 65535")
    return int(digits)


def _read_host(text: str) -> str:
    if text.startswith("["):
        if not _IPV6.match(text):
            raise ValueError("the URL holds a bracketed host that is not an IPv6 address")
        return text.lower()
    if not text.strip("."):
        raise ValueError("the URL has no host")
    if not text.isascii():
        try:
            text = text.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError("the host in the URL is not a possible name") from None
    if not _HOST.match(text) or len(text) > 254:
        raise ValueError("the host in the URL is not a possible name")
    return text.lower()
