"""What must never be read by a stranger: secrets become `***`, control and bidi characters become
their escapes.

Pure text in, pure text out. Used by the logs and by whatever prints settings.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

MASK: Final = "***"

_SECRET_KEYS: Final = frozenset(
    {
        "authorization",
        "proxy_authorization",
        "cookie",
        "set_cookie",
        "x_api_key",
        "api_key",
        "apikey",
        "password",
        "passwd",
        "secret",
        "signing_secret",
        "client_secret",
        "private_key",
        "credentials",
        "token",
        "callback_token",
        "x_callback_token",
        "access_token",
        "refresh_token",
        "lease_token",
    }
)

# Each alternative keeps what tells the reader where the secret stood and drops the secret itself.
_SECRETS: Final = re.compile(
    r"(?P<userinfo>://)[^\s/?#\"'<>]*@"
    r"|\bksana_(?=[A-Za-z0-9_\-.~]*[0-9])[A-Za-z0-9_\-.~]{16,}"
    r"|(?P<callback>/callbacks/)[0-9A-Fa-f]{16,}"
    r"|(?P<scheme>\b(?i:bearer|apikey)[ \t]+(?=[^\s\"',;]{6})"
    r"|\b(?i:basic|digest|negotiate)[ \t]+(?=[^\s\"',;]{6})(?=[^\s\"',;]*[0-9A-Z=]))[^\s\"',;]+"
    r"|(?P<header>\b(?i:(?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-callback-token)\b"
    r"[\"']?[ \t]*[:=][ \t]*)"
    r"(?P<quote>[\"']?)[^\r\n\"']+"
    r"|(?P<query>[?&;](?P<name>[A-Za-z0-9_.~%\[\]\-]{1,64})=)[^&#\s\"'<>]+"
)
SHOWN_QUERY: Final = frozenset(
    {
        *("page", "page_size", "limit", "cursor", "after", "before", "from", "to", "order", "sort"),
        *("status", "state", "type", "entity_type", "job_type", "object_type", "action"),
        *("metric", "bucket", "range", "wait_sec", "timeout", "version", "v", "format", "lang"),
        *("locale", "tz", "timezone", "at", "n", "dry_run"),
        *("sslmode", "charset", "connect_timeout", "application_name", "unix_socket", "mode"),
    }
)
"""Members of a query whose values are shown: our own that hold no one's data, what is common in
target addresses, and what a database address needs. All others are masked, whatever their name."""

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]|[\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

MAX_TEXT: Final = 4096
"""Longest text kept in one member of a log line; a target's answer must not fill the disk."""

_MAX_DEPTH: Final = 6
_QUERIES: Final = frozenset({"query", "query_string"})
"""Members of a log line that hold a query without its question mark."""


def redact_text(text: str) -> str:
    """Mask what looks like a secret inside free text."""
    return _SECRETS.sub(_masked, text)


def redact_member(
    name: str, value: Any, secret_names: frozenset[str] = frozenset(), depth: int = 0
) -> Any:
    """Mask the value of a member whose name says that it is secret; look into containers and text
    otherwise."""
    key = name.lower().replace("-", "_")
    if (key in _SECRET_KEYS or key in secret_names) and value is not None:
        return MASK
    if isinstance(value, str):
        if key in _QUERIES:
            return redact_text(f"?{value[:MAX_TEXT]}")[1:]
        return redact_text(value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…")
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {str(k): redact_member(str(k), v, secret_names, depth + 1) for k, v in value.items()}
    if isinstance(value, bytes | bytearray):
        return redact_text(bytes(value[:MAX_TEXT]).decode("utf-8", "replace"))
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        # A header as a pair: its first half names the second.
        return [value[0], redact_member(value[0], value[1], secret_names, depth + 1)]
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_member("", item, secret_names, depth + 1) for item in value]
    return redact_text(str(value)[:MAX_TEXT])


def redact_headers(
    headers: Iterable[tuple[str, str]], secret_headers: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """Mask the values of the headers that carry secrets by rule, and of those the task calls
    secret."""
    secret_names = frozenset(name.lower().replace("-", "_") for name in secret_headers)
    return [(name, str(redact_member(name, value, secret_names))) for name, value in headers]


def mask_url(url: str) -> str:
    """Mask the login and secret parameters of a URL, also where the password was not
    percent-encoded."""
    scheme, sep, rest = url.partition("://")
    if sep and scheme.lower() not in {"http", "https"}:
        # The last @ of all ends the login: whoever wrote an unescaped /, ? or # into a password
        # must not see it shown.
        login, _, place = rest.rpartition("@")
        rest = f"{MASK}@{place}" if login else rest
        return redact_text(f"{scheme}{sep}{rest}")
    return redact_text(url)


def escape_controls(text: str) -> str:
    """Write control, bidi and line-breaking characters as escapes: a line stays one line."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escaped, text)


def _masked(match: re.Match[str]) -> str:
    groups = match.groupdict()
    kept = groups["userinfo"] or groups["callback"] or groups["scheme"] or groups["query"]
    if groups["query"] and groups["name"].lower() in SHOWN_QUERY:
        return match[0]
    if groups["userinfo"]:
        return "://" + MASK + "@"
    if groups["header"]:
        return groups["header"] + (groups["quote"] or "") + MASK
    return (kept or "") + MASK


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")
