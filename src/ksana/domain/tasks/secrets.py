"""Which parts of a task are secret, and what follows when it is changed: a header stops being
secret, or follows its task to another place, only with a value that the caller sends. Pure."""

import base64
import binascii
from collections.abc import Iterable
from typing import Final

import msgspec

from ksana.domain.secrets import LEAST, Secrets, spell
from ksana.domain.tasks.records import Definition

SECRET_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Secret in every task, whether it says so or not."""

OF_THE_CALL: Final = frozenset(
    {
        "x-callback-token",
        "x-callback-url",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
)
"""Headers that we add for the target alone."""

HIDDEN_HEADERS: Final = SECRET_HEADERS | OF_THE_CALL - {"webhook-id", "webhook-timestamp"}
"""Headers whose values read `***` wherever a request is shown."""

OF_EVERY_CALL: Final = Secrets(SECRET_HEADERS | OF_THE_CALL, ())
"""What is hidden of a call that has nothing else to hide."""

_LEAST_PART: Final = 8
"""A part of a header or a body is looked for from this length on."""
_MOST_TEXTS: Final = 256


def list_secret_names(secret_headers: tuple[str, ...]) -> frozenset[str]:
    """The names of a task's secret headers, in lower case."""
    if not secret_headers:
        return SECRET_HEADERS
    return SECRET_HEADERS.union(name.lower() for name in secret_headers)


def find_secrets(
    headers: Iterable[tuple[str, str]],
    secret_headers: tuple[str, ...],
    signing_secret: str | None = None,
    is_body_secret: bool = False,
) -> Secrets | None:
    """The secrets of a task's calls; None if it has none."""
    names = list_secret_names(secret_headers) if secret_headers else SECRET_HEADERS
    values: list[str] = []
    for name, value in headers:
        if name.lower() in names:
            values += _parts_of(name.lower(), value)
    if signing_secret:
        values += [signing_secret, signing_secret.removeprefix("whsec_")]
    if not values and not is_body_secret:
        return None
    return Secrets(names | OF_THE_CALL, spell(values), is_body_secret)


def add_token(secrets: Secrets | None, token: str) -> Secrets:
    """The same with a callback token."""
    return (secrets or OF_EVERY_CALL).with_token(token)


def add_body(secrets: Secrets, body: str) -> Secrets:
    """The same with a secret body: as a whole, and each text in it if it is JSON. There may be
    hundreds, and the more spellings of each, the longer an answer is searched for them."""
    values = spell([body, *_texts_in(body)], plainly=True)
    both = sorted({*secrets.values, *values}, key=len, reverse=True)
    return Secrets(secrets.names, tuple(both), True)


def find_origin(url: str, name: str) -> tuple[str, str]:
    """Scheme and authority of a target as far as its definition fixes them. The name counts where
    it stands in the authority as a placeholder."""
    scheme, _, rest = url.partition("://")
    for mark in "/?#":
        rest = rest.partition(mark)[0]
    authority = rest.rpartition("@")[2].lower()
    if "{{" in authority:
        authority += f" {name}"
    scheme = scheme.lower()
    port = {"http": ":80", "https": ":443"}.get(scheme, "")
    return scheme, authority.removesuffix(port)


def has_moved(old: Definition, url: str, name: str) -> bool:
    """Whether a change of URL or name sends a task's calls to another origin. From http to https
    on the same host is none."""
    (scheme, authority) = find_origin(url, name)
    (old_scheme, old_authority) = find_origin(old.target_url, old.name)
    if authority != old_authority:
        return True
    has_port = ":" in authority.rpartition("]")[2]
    is_upgrade = (old_scheme, scheme) == ("http", "https") and not has_port
    return scheme != old_scheme and not is_upgrade


def _parts_of(name: str, value: str) -> list[str]:
    """A header's value, and what of it somebody may repeat alone."""
    value = value.strip()
    found = [value]
    if name == "cookie":
        pairs = (pair.partition("=")[2].strip() for pair in value.split(";"))
        found += [each for each in pairs if len(each) >= _LEAST_PART]
        return found
    scheme, _, rest = value.partition(" ")
    rest = rest.strip()
    if len(rest) >= (LEAST if name.endswith("authorization") else _LEAST_PART):
        found.append(rest)
    if scheme.lower() == "basic":
        login = _read_basic(rest)
        found += [login, login.partition(":")[2]] if login else []
    return found


def _texts_in(body: str) -> list[str]:
    """The texts of a JSON document that are long enough to be told from others, so many at most."""
    try:
        pending = [msgspec.json.decode(body)]
    except (msgspec.DecodeError, RecursionError):
        return []
    found: list[str] = []
    while pending and len(found) < _MOST_TEXTS:
        one = pending.pop()
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, str) and len(one) >= _LEAST_PART:
            found.append(one)
    return found


def _read_basic(text: str) -> str:
    try:
        return base64.b64decode(text.encode(), validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        return ""
