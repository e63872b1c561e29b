"""Idempotent writes: the first answer again for the same key, in the same transaction as the write
it answers (X21)."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from ksana.base.errors import ConflictError
from ksana.base.instant import HOUR, Micros

T = TypeVar("T")

KEPT_FOR: Final[Micros] = 24 * HOUR


class Idempotency(msgspec.Struct, frozen=True):
    """A caller's key for one write: where it counts, the key, a digest of the body, and how the
    answer is written down."""

    scope: str
    key: str
    body_hash: str
    render: Callable[[Any], bytes]
    """Turns the write's result into the answer that is kept."""


class Replayed(Exception):
    """The write happened before; this is its answer. Caught at the edge, never shown as an error."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("answered before")
        self.answer = answer


def once_only(fn: Callable[..., T], idempotency: Idempotency | None) -> Callable[..., T]:
    """Wrap a transaction function so that a repeated key raises Replayed and another body
    IDEMPOTENCY_MISMATCH."""
    if idempotency is None:
        return fn
    wanted = idempotency

    def guarded(tx: Any, *args: Any, **kwargs: Any) -> T:
        body = wanted.body_hash.encode()
        known: str | None = tx.idempotency.find_answer(wanted.scope, wanted.key, body)
        if known is not None:
            raise Replayed(known.encode())
        result = fn(tx, *args, **kwargs)
        if not tx.idempotency.remember(
            wanted.scope, wanted.key, body, wanted.render(result).decode(), KEPT_FOR
        ):
            # The same key came in by another instance at this very moment; ours is undone and the
            # caller asks again.
            raise ConflictError(
                "a request with this Idempotency-Key is under way", code="DUPLICATE_REQUEST"
            )
        return result

    return guarded
