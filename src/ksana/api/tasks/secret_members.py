"""Secrets of a task at the edge: shown as `***`, kept where `***` is sent back, and given up only
to a caller who sends a value of its own."""

from collections.abc import Mapping
from typing import Final

import msgspec

from ksana.base.errors import InvalidError
from ksana.domain.secrets import MASK, SEALED
from ksana.domain.tasks import headers as header_rules
from ksana.domain.tasks.records import Definition
from ksana.domain.tasks.secrets import SECRET_HEADERS, has_moved, list_secret_names
from ksana.domain.tasks.signing import check_secret

_MOVED: Final = (
    "target_url goes to another origin, and {} does not follow it: send its value again, or null "
    "to drop it"
)


class Stored(msgspec.Struct, frozen=True):
    """What a change may keep of the task it changes."""

    old: Definition | None = None
    is_moved: bool = False
    """Whether the change sends the calls to another origin. Then no secret is kept."""

    def refuse_if_moved(self, what: str, field: str) -> None:
        """Raise InvalidError for a secret that would follow."""
        if self.is_moved:
            raise InvalidError(_MOVED.format(what), field=field)


NOTHING: Final = Stored()


def find_stored(old: Definition | None, url: str, name: str) -> Stored:
    """What a change of a task to this URL and name may keep. Without a URL the change is refused
    for that, and not for the secrets."""
    return NOTHING if old is None else Stored(old, bool(url) and has_moved(old, url, name))


def mask_headers(headers: Mapping[str, str], secret: tuple[str, ...]) -> dict[str, str]:
    """Headers for an answer: secrets read `***`."""
    hidden = list_secret_names(secret) if secret else SECRET_HEADERS
    return {name: MASK if name.lower() in hidden else value for name, value in headers.items()}


def mask_body(definition: Definition) -> str | None:
    """A task's body for an answer."""
    is_hidden = definition.options.secret_body and definition.body is not None
    return MASK if is_hidden else definition.body


def read_headers(
    sent: Mapping[str, str], secret: tuple[str, ...], stored: Stored, field: str
) -> dict[str, str]:
    """Check headers; `***` in the place of a secret keeps the one that is stored."""
    if not sent:
        return {}
    kept: dict[str, str] = {}
    hidden = was_hidden = list_secret_names(secret)
    if stored.old is not None:
        kept = {name.lower(): value for name, value in stored.old.headers.items()}
        was_hidden = list_secret_names(stored.old.options.secret_headers)
    headers: dict[str, str] = {}
    seen: set[str] = set()
    for name, value in sent.items():
        lower = name.lower()
        if lower in seen:
            raise InvalidError(f"the header {name[:64]} is given twice", field=field)
        seen.add(lower)
        refuse_sealed(value, field)
        if value == MASK and (lower in hidden or lower in was_hidden):
            if lower not in kept:
                raise InvalidError(
                    f"{MASK} stands for a stored secret, and none is stored for {name[:64]}",
                    field=field,
                )
            if lower not in hidden:
                raise InvalidError(
                    f"{name[:64]} leaves secret_headers only with a new value: send it in {field}",
                    field="secret_headers",
                )
            stored.refuse_if_moved(f"the header {name[:64]}", field)
            value = kept[lower]
        headers[name] = value
    header_rules.check_headers(headers, field=field)
    return headers


def refuse_sealed(value: str, field: str) -> None:
    """Raise InvalidError for a text that looks like a sealed secret: nobody may have one opened."""
    if value.startswith(SEALED):
        raise InvalidError(f"a text may not begin with {SEALED}", field=field)


def read_body(sent: str, is_secret: bool, stored: Stored, field: str) -> str | None:
    """A task's body; `***` keeps a secret one that is stored."""
    old = stored.old
    if sent == MASK and old is not None and old.options.secret_body:
        if not is_secret:
            raise InvalidError(
                f"secret_body ends only with a new body: send it in {field}", field="secret_body"
            )
        stored.refuse_if_moved("the secret body", field)
        return old.body
    refuse_sealed(sent, field)
    return sent or None


def read_signing_secret(sent: str | None, stored: Stored) -> str | None:
    """A signing secret; `***` keeps the one that is stored."""
    if sent == MASK:
        if stored.old is None or stored.old.options.signing_secret is None:
            raise InvalidError(
                f"{MASK} stands for a stored secret, and none is stored", field="signing_secret"
            )
        stored.refuse_if_moved("the signing secret", "signing_secret")
        return stored.old.options.signing_secret
    if not sent:
        return None
    check_secret(sent)
    return sent


def keep_signing_secret(stored: Stored) -> None:
    """Raise InvalidError where a dialect that cannot send a signing secret would carry it along."""
    if not stored.is_moved or stored.old is None or stored.old.options.signing_secret is None:
        return
    raise InvalidError(
        "this record has a signing secret, which does not follow it to another origin: "
        "change it by PATCH /api/v1/tasks/{task_id} with a new signing_secret or null",
        field="http.url",
    )
