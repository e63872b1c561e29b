"""Idempotency-Key at the edge (X21): the header becomes the service's key, and a remembered answer
goes out again."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from ksana.api.core.routing import Call, Content
from ksana.base.errors import InvalidError
from ksana.service.core.idempotency import Idempotency, Replayed

T = TypeVar("T")

MAX_KEY: Final = 255
_encode = msgspec.json.Encoder().encode


def read_key(call: Call, scope: str, body: Any, render: Callable[[T], bytes]) -> Idempotency | None:
    """Read the caller's key, if it sent one. What counts as the same request: method, path and the
    body's meaning."""
    key = call.header("idempotency-key")
    if key is None:
        return None
    if not (1 <= len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise InvalidError(
            f"Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters",
            field="Idempotency-Key",
        )
    digest = hashlib.sha256(f"{call.method}\n{call.path}\n".encode() + _encode(body)).hexdigest()
    return Idempotency(scope, key, digest, render)


async def answer_once(work: Awaitable[T], render: Callable[[T], bytes], status: int) -> Content:
    """Answer a write, or its remembered answer with a header that says so."""
    try:
        result = await work
    except Replayed as replayed:
        return Content(
            replayed.answer, "application/json", status, ((b"idempotency-replayed", b"true"),)
        )
    return Content(render(result), "application/json", status)
