"""Signatures in the Standard Webhooks form, which every consumer library can verify. Pure: id and
time are given."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from ksana.base.errors import InvalidError
from ksana.base.instant import SECOND, Instant

PREFIX: Final = "whsec_"
MAX_SECRET: Final = 512


def sign(
    secret: str | Sequence[str], msg_id: str, at: Instant, body: bytes
) -> tuple[tuple[str, str], ...]:
    """Make the three headers. With several secrets, as while a key is being replaced, each gives a
    signature."""
    secrets = (secret,) if isinstance(secret, str) else secret
    seconds = at // SECOND
    content = f"{msg_id}.{seconds}.".encode() + body
    signatures = " ".join("v1," + _signature(read_key(each), content) for each in secrets)
    return (
        ("webhook-id", msg_id),
        ("webhook-timestamp", str(seconds)),
        ("webhook-signature", signatures),
    )


def check_secret(secret: str, *, field: str = "signing_secret") -> None:
    """Raise InvalidError unless the secret is base64 of a key, with or without `whsec_`."""
    try:
        read_key(secret)
    except ValueError as error:
        raise InvalidError(str(error), field=field) from None


def read_key(secret: str) -> bytes:
    """Read the key out of a secret. Raise ValueError saying what is allowed, without showing the
    secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if not key or len(secret) > MAX_SECRET:
        raise ValueError(
            f"a signing secret is the base64 of a key, such as {PREFIX} and 32 characters of base64"
        )
    return key


def _signature(key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode("ascii")
