"""The secret members of a task as they are stored: sealed, opened, or dropped with their task.

`options.sealed_by` is the key that sealed all of them: empty if none did, GONE if they were
dropped. Pure: how a text is sealed is handed in.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ksana.domain.secrets import MASK, SEALED, key_id_of
from ksana.domain.tasks.records import Definition, Options
from ksana.domain.tasks.secrets import list_secret_names

CLEAR: Final = "clear"
"""Secrets that are stored as they are."""
GONE: Final = "gone"
"""The task was deleted, and its secrets with it."""

UNKNOWN: Final = "unknown"
"""Stored before this was noted; a loop looks at them after an upgrade."""

Rewrite = Callable[[str, str], str]
"""Makes one secret from another; the second argument is its place in the task."""


def has_secrets(definition: Definition) -> bool:
    """Whether a task has anything to seal."""
    options = definition.options
    if options.signing_secret is not None or (options.secret_body and definition.body is not None):
        return True
    if not definition.headers:
        return False
    names = list_secret_names(options.secret_headers)
    return any(name.lower() in names for name in definition.headers)


def find_seal(definition: Definition) -> str | None:
    """How a task's secrets are stored: the key's id, CLEAR or GONE; None if it has none."""
    if definition.options.sealed_by:
        return definition.options.sealed_by
    return CLEAR if has_secrets(definition) else None


def rewrite_secrets(definition: Definition, rewrite: Rewrite, sealed_by: str) -> Definition:
    """The task with each of its secrets rewritten."""
    options, body = definition.options, definition.body
    names = list_secret_names(options.secret_headers)
    headers = {
        name: rewrite(value, f"header/{name.lower()}") if name.lower() in names else value
        for name, value in definition.headers.items()
    }
    secret = options.signing_secret
    if secret is not None:
        secret = rewrite(secret, "signing_secret")
    if options.secret_body and body is not None:
        body = rewrite(body, "body")
    return msgspec.structs.replace(
        definition,
        headers=headers,
        body=body,
        options=msgspec.structs.replace(options, signing_secret=secret, sealed_by=sealed_by),
    )


def drop_secrets(definition: Definition) -> Definition:
    """The task without its secrets: it was deleted."""
    if not has_secrets(definition):
        return definition
    options: Options = msgspec.structs.replace(definition.options, signing_secret=None)
    return rewrite_secrets(
        msgspec.structs.replace(definition, options=options), lambda *_: MASK, GONE
    )


def settle_seal(definition: Definition) -> Definition:
    """The task with `sealed_by` as its secrets show it: people edit the file they are read from."""
    if not has_secrets(definition):
        return _with_seal(definition, "")
    found: set[str] = set()

    def look(text: str, _: str) -> str:
        found.add(key_id_of(text) if text.startswith(SEALED) else "")
        return text

    rewrite_secrets(definition, look, "")
    # Some sealed and some not: each is opened if it has to be, and all are sealed anew.
    return _with_seal(definition, found.pop() if len(found) == 1 else CLEAR)


def _with_seal(definition: Definition, sealed_by: str) -> Definition:
    if definition.options.sealed_by == sealed_by:
        return definition
    options = msgspec.structs.replace(definition.options, sealed_by=sealed_by)
    return msgspec.structs.replace(definition, options=options)
