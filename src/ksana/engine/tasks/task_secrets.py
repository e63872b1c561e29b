"""Secrets of tasks between the store and a call: sealed when they are stored, opened when they are
sent; and callback tokens, of which the store has the hash alone.

A token is derived from its run's uid, so that every attempt, on whichever instance, can send the
same one. Whoever reads the store has neither the token nor, if an operator's key is set, the key.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from ksana.domain.secrets import SEALED, hash_token
from ksana.domain.tasks.records import ClaimedRun, Definition
from ksana.domain.tasks.sealing import GONE, has_secrets, rewrite_secrets
from ksana.ports.secrets import ClearBox, SealError, SecretBox

TOKEN_DIGITS: Final = 32
_PERSON: Final = b"ksana callback"


class TaskSecrets:
    """What services and delivery share. Used by the loop and by the store's threads."""

    def __init__(self, box: SecretBox | None = None) -> None:
        self._box: SecretBox = box or ClearBox()

    @property
    def key_id(self) -> str | None:
        """The key that seals; None if there is none."""
        return self._box.key_id

    def seal(self, definition: Definition, job_id: str) -> Definition:
        """The task as it is stored."""
        key_id = self._box.key_id
        if (key_id is None and not definition.options.sealed_by) or not has_secrets(definition):
            return definition
        return rewrite_secrets(
            definition,
            lambda text, place: self._box.seal(text, f"task/{job_id}/{place}"),
            key_id or "",
        )

    def open(self, definition: Definition, job_id: str) -> Definition:
        """The task as it is sent. Raise SealError."""
        if not definition.options.sealed_by:
            return definition
        if definition.options.sealed_by == GONE:
            raise SealError("the task was deleted, and its secrets with it")
        return rewrite_secrets(
            definition, lambda text, place: self._box.open(text, f"task/{job_id}/{place}"), ""
        )

    def open_run(self, run: ClaimedRun) -> ClaimedRun:
        """A run as it is sent, with its callback token. Raise SealError."""
        task, body, token = run.task, run.override_body, None
        if task.definition.options.sealed_by:
            opened = self.open(task.definition, task.job_id)
            task = msgspec.structs.replace(task, definition=opened)
        if body is not None and body.startswith(SEALED):
            body = self._box.open(body, f"task/{task.job_id}/override_body")
        if run.callback_hash is not None:
            token = self.find_token(run.uid, run.callback_hash)
        if task is run.task and body is run.override_body and token is None:
            return run
        return msgspec.structs.replace(run, task=task, override_body=body, callback_token=token)

    def seal_override(self, body: str, definition: Definition, job_id: str) -> str:
        """A body for one run as it is stored: sealed where the task's own would be."""
        if not definition.options.secret_body:
            return body
        return self._box.seal(body, f"task/{job_id}/override_body")

    def hash_new_token(self, uid: str) -> str:
        """The hash of a new run's callback token."""
        return hash_token(_derive(self._box.token_keys[0], uid))

    def find_token(self, uid: str, stored: str) -> str:
        """The callback token of a run, by what is stored of it. Raise SealError if its key is not
        here."""
        stored = stored.rstrip()  # PostgreSQL fills the column up
        if len(stored) == TOKEN_DIGITS:
            return stored  # of a run that was open when tokens came to be hashed
        for key in self._box.token_keys:
            token = _derive(key, uid)
            if hmac.compare_digest(hash_token(token), stored):
                return token
        raise SealError(
            "the run's callback token was made with a key that is not among those of "
            "KSANA_SECRET_KEY"
        )


def _derive(key: bytes, uid: str) -> str:
    return hashlib.blake2b(uid.encode(), digest_size=16, key=key[:64], person=_PERSON).hexdigest()


CLEAR: Final = TaskSecrets()
"""For whoever brings no box: nothing is sealed, and tokens live as long as the process."""
