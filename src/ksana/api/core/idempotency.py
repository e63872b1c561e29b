"""Idempotency-Key at the edge (X21): reads the header, and sends a kept answer again. The rules are
the service's."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from ksana.api.core.routing import Call, Content
from ksana.service.core.idempotency import IdempotentRequest, ReplayedAnswer, identify

T = TypeVar("T")

REPLAYED: Final = ((b"idempotency-replayed", b"true"),)
_encode = msgspec.json.Encoder().encode


def read_key(
    call: Call, operation: str, body: Any, render: Callable[[T], bytes]
) -> IdempotentRequest | None:
    """Read the caller's key, if it sent one. Two requests are the same if method, path and the
    body's meaning are."""
    sent = call.headers.get(b"idempotency-key")
    if sent is None:
        return None
    key = sent.decode("latin-1")
    request = f"{call.method}\n{call.path}\n".encode() + _encode(body)
    return identify(operation, call.principal, key, request, render)


async def answer_once(work: Awaitable[T], render: Callable[[T], bytes], status: int) -> Content:
    """Answer a write, or send its first answer again with a header that says so."""
    try:
        result = await work
    except ReplayedAnswer as replayed:
        return Content(replayed.answer, "application/json", status, REPLAYED)
    return Content(render(result), "application/json", status)
