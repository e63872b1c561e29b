"""Idempotent writes (X21), for every surface: all rules are here.

A caller sends a key with a write. The first answer is kept for a day, in the same transaction as
the write it answers, and given again to a repeat: the same operation, by the same caller, with the
same key. Callers are told apart by their API key; without one there is a single
anonymous caller. The store keeps hashes only: neither the key nor the request can be read from it.

    the key is new                            do it, keep the answer
    known, the same request                   the first answer again (`ReplayedAnswer`)
    known, another request                    409 IDEMPOTENCY_MISMATCH
    kept by another instance meanwhile        409 DUPLICATE_REQUEST; ours is undone
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from ksana.base.errors import ConflictError, InvalidError
from ksana.base.instant import HOUR, Micros
from ksana.service.core.keys import Principal

T = TypeVar("T")

KEPT_FOR: Final[Micros] = 24 * HOUR
MAX_KEY: Final = 255
ANONYMOUS: Final = "-"
"""The caller where no API key is needed; no id of a key looks like it."""
SHOWN_DIGITS: Final = 16
"""Digits of a digest in a refusal: enough to tell requests apart."""


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A write that a caller may repeat: where its key counts, what was asked, and how the result is
    written down."""

    scope: str
    key_hash: str
    body_hash: str
    render: Callable[[Any], bytes]
    """Turns the write's result into the answer that is kept."""


class ReplayedAnswer(Exception):
    """The write happened before; this is its answer. Caught at the edge, never shown as an
    error."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("answered before")
        self.answer = answer


def identify(
    operation: str,
    caller: Principal | None,
    key: str,
    request: bytes,
    render: Callable[[Any], bytes],
) -> IdempotentRequest:
    """Read a caller's key for one write. `request` is everything that makes two requests the same.
    Raise InvalidError for a key that cannot be one."""
    if not (1 <= len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise InvalidError(
            f"Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters",
            field="Idempotency-Key",
        )
    return IdempotentRequest(
        scope=f"{operation}:{ANONYMOUS if caller is None else caller.key_id}",
        key_hash=_digest(key.encode()),
        body_hash=_digest(request),
        render=render,
    )


def once_only(fn: Callable[..., T], request: IdempotentRequest | None) -> Callable[..., T]:
    """Wrap a transaction function so that it runs once per key; without a request, always."""
    if request is None:
        return fn
    wanted = request

    def guarded(tx: Any, *args: Any, **kwargs: Any) -> T:
        known = tx.idempotency.find_answer(wanted.scope, wanted.key_hash)
        if known is not None:
            if known.body_hash != wanted.body_hash:
                raise _mismatch(known.body_hash, wanted.body_hash)
            raise ReplayedAnswer(known.answer.encode())
        result = fn(tx, *args, **kwargs)
        answer = wanted.render(result).decode()
        if not tx.idempotency.remember(
            wanted.scope, wanted.key_hash, wanted.body_hash, answer, KEPT_FOR
        ):
            raise ConflictError(
                "a request with this Idempotency-Key is under way; send it again for its answer",
                code="DUPLICATE_REQUEST",
            )
        return result

    return guarded


def _mismatch(first: str, sent: str) -> ConflictError:
    return ConflictError(
        "this Idempotency-Key was used with another request; use a new key for a new request",
        code="IDEMPOTENCY_MISMATCH",
        current={"request_digest": first[:SHOWN_DIGITS]},
        request_digest=sent[:SHOWN_DIGITS],
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
