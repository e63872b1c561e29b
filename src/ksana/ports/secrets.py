"""The SecretBox: secrets as they lie in the store. With a key they are sealed, without one they are
stored as they are. Which of a record's members are secret is not its matter."""

from typing import Protocol

from ksana.base.errors import UnavailableError
from ksana.base.ids import new_uid
from ksana.domain.secrets import SEALED, key_id_of


class SealError(UnavailableError):
    """A sealed text cannot be opened: its key is not here, or it is not the text that was sealed in
    this place."""


class SecretBox(Protocol):
    """Seals and opens. `context` names the one place where a text belongs: sealed for one place, it
    cannot be opened in another, so that nobody can have it sent elsewhere by copying it."""

    @property
    def key_id(self) -> str | None:
        """The key that seals; None if there is none."""
        ...

    @property
    def known_ids(self) -> frozenset[str]:
        """The keys that open."""
        ...

    @property
    def token_keys(self) -> tuple[bytes, ...]:
        """Keys from which tokens are derived: new ones from the first, known ones from any."""
        ...

    def seal(self, text: str, context: str) -> str:
        """Seal a text; one that is sealed by the present key stays as it is, one sealed by another
        is sealed anew. Without a key the text itself. Raise SealError."""
        ...

    def open(self, text: str, context: str) -> str:
        """Open a text that may be sealed. Raise SealError."""
        ...


class ClearBox:
    """No key: texts stay as they are."""

    key_id = None
    known_ids: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.token_keys: tuple[bytes, ...] = ((new_uid() + new_uid()).encode(),)

    def use_token_key(self, key: bytes) -> None:
        """Derive tokens from a key that outlives the process."""
        self.token_keys = (key,)

    def seal(self, text: str, context: str) -> str:
        if text.startswith(SEALED):
            raise _no_key(text)
        return text

    def open(self, text: str, context: str) -> str:
        if text.startswith(SEALED):
            raise _no_key(text)
        return text


def _no_key(text: str) -> SealError:
    return SealError(
        f"a secret was sealed by the key {key_id_of(text)}, and no KSANA_SECRET_KEY is set"
    )
