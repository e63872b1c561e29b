"""Secrets sealed by AES-256-GCM, under the first of several keys; any of them opens.

    ksana1:<key id>:<base64url of nonce, ciphertext and tag>

From each key of the operator two are derived, one to seal and one for tokens. The place where a
text belongs is authenticated with it. The nonce has 96 random bits: a key may seal four thousand
million texts before a repeat is to be feared.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Any, Final

from ksana.base.errors import SetupError
from ksana.base.ids import new_bytes
from ksana.domain.secrets import SEALED, key_id_of
from ksana.ports.secrets import ClearBox, SealError, SecretBox

KEY_BYTES: Final = 32
_NONCE: Final = 12
_MAX_KEYS: Final = 16


def make_box(keys: tuple[bytes, ...]) -> "ClearBox | AesBox":
    """The box of these keys; without one it leaves everything as it is."""
    return AesBox(keys) if keys else ClearBox()


def new_key() -> str:
    """A new key as the setting takes it."""
    return base64.b64encode(new_bytes(KEY_BYTES)).decode()


def read_keys(text: str) -> tuple[bytes, ...]:
    """Read keys, the present one first, between spaces, commas or line breaks. Raise ValueError
    saying what is allowed, without showing a key."""
    keys = tuple(_read_key(part) for part in text.replace(",", " ").split())
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"at most {_MAX_KEYS} keys can be given")
    if len(set(keys)) != len(keys):
        raise ValueError("a key is given twice")
    return keys


class AesBox:
    """Implements `SecretBox`."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        aead = _load_aead()
        self._ciphers = {_id_of(key): aead(_derive(key, b"seal")) for key in keys}
        self.key_id: str = _id_of(keys[0])
        self.known_ids = frozenset(self._ciphers)
        self.token_keys: tuple[bytes, ...] = tuple(_derive(key, b"tokens") for key in keys)
        self._present = f"{SEALED}{self.key_id}:"

    def use_token_key(self, key: bytes) -> None:
        """Know the tokens too that were made before there was a key."""
        self.token_keys = (*self.token_keys, key)

    def seal(self, text: str, context: str) -> str:
        if text.startswith(SEALED):
            opened = self.open(text, context)  # also where it stays: a foreign text is not taken
            if text.startswith(self._present):
                return text
            text = opened
        nonce = new_bytes(_NONCE)
        data = self._ciphers[self.key_id].encrypt(nonce, text.encode(), context.encode())
        return self._present + base64.urlsafe_b64encode(nonce + data).decode()

    def open(self, text: str, context: str) -> str:
        if not text.startswith(SEALED):
            return text
        key_id, _, sealed = text.removeprefix(SEALED).partition(":")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise SealError(
                f"a secret was sealed by the key {key_id_of(text)}, "
                "which is not among those of KSANA_SECRET_KEY"
            )
        try:
            data = base64.urlsafe_b64decode(sealed)
            opened: bytes = cipher.decrypt(data[:_NONCE], data[_NONCE:], context.encode())
        except Exception:  # InvalidTag, and what a text that was cut makes of base64
            raise SealError(
                f"a secret sealed by the key {key_id} is damaged, or was sealed for another place"
            ) from None
        return opened.decode()


def _load_aead() -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only who has a key needs it

    return AESGCM


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"ksana/1/" + purpose, "sha256")


def _id_of(key: bytes) -> str:
    return hashlib.sha256(_derive(key, b"id")).hexdigest()[:8]


def _read_key(text: str) -> bytes:
    try:
        if len(text) == 2 * KEY_BYTES:
            return bytes.fromhex(text)
        padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
        key = base64.b64decode(padded.encode("ascii"), validate=True)
    except (ValueError, binascii.Error, UnicodeEncodeError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"a key is {KEY_BYTES} random bytes in base64 or hex; `ksana secret new-key` makes one"
        )
    return key


def check_ids(found: list[str], box: SecretBox) -> None:
    """Raise SetupError if the store holds secrets that this box cannot open."""
    unknown = sorted(set(found) - box.known_ids)
    if unknown:
        have = ", ".join(sorted(box.known_ids)) or "none"
        raise SetupError(
            f"the store holds secrets sealed by the key {', '.join(unknown)}, and the keys here "
            f"are {have}: give KSANA_SECRET_KEY the keys they were sealed by, the new one first"
        )
