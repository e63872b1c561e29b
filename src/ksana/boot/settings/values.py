"""How one setting's value is read and shown: the kinds of values, and nothing about where they come
from.

A reader takes text (flags, environment) or what TOML gave and answers the value, or raises
ValueError saying what is allowed.
"""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from ksana.base.durations import format_duration, parse_duration
from ksana.base.instant import Micros
from ksana.boot.redaction import mask_url
from ksana.boot.sealing import read_keys

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_SIZE: Final = re.compile(
    r"(\d{1,15})\s*(b|kb|kib|k|mb|mib|m|gb|gib|g)?\Z", re.ASCII | re.IGNORECASE
)
_SIZE_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_GO_DSN: Final = re.compile(r"(?:(.*)@)?(?:(tcp|unix)(?:\(([^)]*)\))?)?/([^/?]*)(?:\?(.*))?\Z")

STORE_SCHEMES: Final = ("sqlite", "mysql", "postgresql", "json")
COORDINATION_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")
_SCHEME_ALIASES: Final = {"mariadb": "mysql", "postgres": "postgresql", "sqlite3": "sqlite"}


class Kind(msgspec.Struct, frozen=True):
    """A kind of value: how to read it, how to show it, and how to name it in the docs."""

    name: str
    read: Callable[[Any], Any]
    show: Callable[[Any], str] = str


class About(msgspec.Struct, frozen=True):
    """What is said of a setting beside its default: its kind, its sentence, further names, whether
    it is secret."""

    kind: Kind
    help: str
    env: tuple[str, ...] = ()
    flag: str | None = None
    secret: bool = False


def text(*, pattern: str | None = None, allowed: str = "") -> Kind:
    """Any text without control characters, or one that matches the pattern."""

    def read(raw: Any) -> str:
        value = _plain(raw)
        if pattern is not None and re.fullmatch(pattern, value, re.ASCII) is None:
            raise ValueError(f"it must be {allowed}")
        return value

    return Kind("text", read)


def integer(least: int, most: int) -> Kind:
    """A whole number in a range."""

    def read(raw: Any) -> int:
        if isinstance(raw, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", raw, re.ASCII):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            raise ValueError(f"it must be a whole number from {least} to {most}")
        return raw

    return Kind("integer", read)


def duration(least: Micros = 0, most: Micros | None = None) -> Kind:
    """A span of time, kept in microseconds."""

    def read(raw: Any) -> Micros:
        span = parse_duration(raw)
        if span < least:
            raise ValueError(f"it must be at least {format_duration(least)}")
        if most is not None and span > most:
            raise ValueError(f"it must be at most {format_duration(most)}")
        return span

    return Kind("duration", read, format_duration)


def choice(*words: str) -> Kind:
    """One of a few words, in any case."""

    def read(raw: Any) -> str:
        value = raw.strip().lower() if isinstance(raw, str) else raw
        if value not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return str(value)

    return Kind(" | ".join(words), read)


def _read_switch(raw: Any) -> bool:
    word = str(raw).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("it must be true or false")


def _read_size(raw: Any) -> int:
    if isinstance(raw, str):
        match = _SIZE.match(raw.strip())
        if match is not None:
            raw = int(match[1]) * _SIZE_UNITS[(match[2] or "").lower()[:1]]
        elif raw.strip().lower() == "whole":
            raw = 0
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw <= 1 << 30:
        raise ValueError(
            'it must be a size such as "64KiB" or a number of bytes, at most 1 GiB; '
            '0 or "whole" for no limit'
        )
    return raw


def _show_size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def _read_words(raw: Any) -> tuple[str, ...]:
    words = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("it must be a list of words")
    return tuple(word.strip() for word in words if word.strip())


def _read_shares(raw: Any) -> tuple[tuple[str, int], ...]:
    """Read `addon=40,other=20` or a TOML table into pairs."""
    if isinstance(raw, str):
        pairs: list[tuple[str, Any]] = []
        for word in raw.split(","):
            name, equals, number = word.strip().partition("=")
            if equals:
                pairs.append((name.strip(), number))
            elif name:
                raise ValueError('it must be like "addon=40,other=20"')
    elif isinstance(raw, dict):
        pairs = list(raw.items())
    else:
        raise ValueError("it must be a table of names and whole numbers")
    units = integer(0, 1_000_000_000)
    return tuple((name, units.read(number)) for name, number in sorted(pairs))


def _read_base_url(raw: Any) -> str:
    """Read how targets reach us. A URL that ends with the path of callbacks means the same."""
    value = _plain(raw).rstrip("/")
    if not value:
        return ""
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError('it must be a URL such as "https://ksana.example"')
    if parts.query or parts.fragment:
        raise ValueError("it must not carry a query or a fragment")
    return value.removesuffix("/api/v1/callbacks")


def _read_endpoint_url(raw: Any) -> str:
    value = _plain(raw)
    parts = urlsplit(value)
    if value and (parts.scheme not in {"http", "https"} or not parts.hostname):
        raise ValueError('it must be a URL such as "http://collector:4318"')
    return value


def _read_store_url(raw: Any) -> str:
    value = _plain(raw)
    if not value:
        return ""
    scheme, sep, rest = value.partition("://")
    scheme = _SCHEME_ALIASES.get(scheme.lower(), scheme.lower())
    if not sep or scheme not in STORE_SCHEMES:
        known = ", ".join(each + "://" for each in STORE_SCHEMES)
        raise ValueError(f"it must be a URL that begins with one of {known}")
    if scheme in {"sqlite", "json"} and not rest.startswith("/"):
        raise ValueError(
            f"write {scheme}:///path for a relative path and {scheme}:////path for an absolute one"
        )
    return f"{scheme}://{rest}"


def _read_coordination_url(raw: Any) -> str:
    value = _plain(raw)
    if value.lower() in {"", "memory", "memory://"}:
        return "memory"
    scheme, sep, rest = value.partition("://")
    if not sep or scheme.lower() not in COORDINATION_SCHEMES or not rest:
        raise ValueError(
            "it must be memory, redis://…, rediss://… or redis+cluster://host:port,host:port"
        )
    return f"{scheme.lower()}://{rest}"


def _plain(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("it must be text")
    value = raw.strip()
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("it must not contain control characters")
    return value


def url_of_go_dsn(dsn: Any) -> str:
    """Turn the Go driver's `user:pass@tcp(host:port)/base?…` into a store URL. A URL passes as it
    is.

    Only where the database is and who we are is taken over; the parameters tune the Go driver and
    mean nothing here.
    """
    value = _plain(dsn)
    if "://" in value:
        return value
    match = _GO_DSN.fullmatch(value)
    if match is None or not match[4]:
        raise ValueError('it must be like "user:password@tcp(host:3306)/base"')
    login, transport, address, base, _ = match.groups()
    user, colon, password = (login or "").partition(":")
    who = (
        quote(user, safe="") + (":" + quote(password, safe="") if colon else "") + "@"
        if login
        else ""
    )
    if transport == "unix":
        return f"mysql://{who}localhost/{base}?unix_socket={quote(address or '', safe='/')}"
    return f"mysql://{who}{address or '127.0.0.1:3306'}/{base}"


def sqlite_url(data_dir: str) -> str:
    """The URL of the database that lies in the data folder."""
    folder = data_dir.replace("\\", "/").rstrip("/")
    folder = folder.removeprefix("./") if folder not in {"", "."} else ""
    path = f"{folder}/ksana.db" if folder or data_dir.startswith("/") else "ksana.db"
    return "sqlite:///" + path


def _read_secret_keys(raw: Any) -> str:
    parts = raw if isinstance(raw, list) else [raw]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("it must be text, or a list of texts")
    value = " ".join(parts)
    read_keys(value)
    return value


def _show_words(words: tuple[str, ...]) -> str:
    return ",".join(words)


def _show_shares(shares: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{name}={units}" for name, units in shares)


def _show_switch(on: bool) -> str:
    return "true" if on else "false"


SWITCH: Final = Kind("true | false", _read_switch, _show_switch)
SIZE: Final = Kind("size", _read_size, _show_size)
WORDS: Final = Kind("list", _read_words, _show_words)
SHARES: Final = Kind("table", _read_shares, _show_shares)
BASE_URL: Final = Kind("URL", _read_base_url, mask_url)
ENDPOINT_URL: Final = Kind("URL", _read_endpoint_url, mask_url)
STORE_URL: Final = Kind("URL", _read_store_url, mask_url)
COORDINATION_URL: Final = Kind("URL", _read_coordination_url, mask_url)
SECRET_KEYS: Final = Kind("text", _read_secret_keys)
