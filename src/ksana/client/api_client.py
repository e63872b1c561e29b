"""What the clients of all surfaces share: settings, connections, calls with typed answers."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ksana.client import wire
from ksana.client.errors import ApiError
from ksana.client.transport import CallBackoff, Transport

MAX_BATCH = 500
WAIT_MARGIN_SEC = 5.0
"""How much longer than its long poll a request may take before we call the server silent."""

T = TypeVar("T")


class ApiClient:
    """Calls to one surface of one server. Use it on one event loop, and close it."""

    base: ClassVar[str]

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        deadline_sec: float = 30.0,
        max_connections: int = 32,
        connect_sec: float = 5.0,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        backoff: CallBackoff | None = None,
    ) -> None:
        """A call that may be repeated is, until it succeeds or `deadline_sec` is over; `backoff`
        says how soon, and may bound how often."""
        self._options: dict[str, Any] = {
            "api_key": api_key,
            "max_connections": max_connections,
            "connect_sec": connect_sec,
            "tls": tls,
            "headers": headers,
            "backoff": backoff,
        }
        self.base_url = base_url
        self.deadline_sec = deadline_sec
        self._transport = Transport(base_url, **self._options)

    def twin(
        self, *, deadline_sec: float | None = None, backoff: CallBackoff | None = None
    ) -> Self:
        """Make a client with the same settings, but for those given, and connections of its own,
        for another event loop."""
        options = {**self._options, "backoff": backoff or self._options["backoff"]}
        return type(self)(self.base_url, deadline_sec=deadline_sec or self.deadline_sec, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _call(self, method: str, path: str, kind: type[T], body: Any = None) -> T:
        reply, _ = await self._transport.call(
            method,
            f"{self.base}{path}",
            None if body is None else wire.encode(body),
            deadline_sec=self.deadline_sec,
        )
        return wire.decode(reply.body, kind)

    async def _get(self, path: str, kind: type[T]) -> T:
        return await self._call("GET", path, kind)

    async def _post(self, path: str, body: Any, kind: type[T]) -> T:
        return await self._call("POST", path, kind, body)

    async def _take(
        self, path: str, body: Any, kind: type[T], wait_sec: float, tries: int | None
    ) -> T | None:
        """A request for jobs. It is never repeated after an unknown outcome: the server may have
        handed jobs out. None where it answers without a body."""
        # A silent server is found out soon after the long poll should have ended, not after the
        # deadline of other calls.
        deadline_sec = max(wait_sec + WAIT_MARGIN_SEC, min(self.deadline_sec, WAIT_MARGIN_SEC))
        reply, _ = await self._transport.call(
            "POST",
            f"{self.base}{path}",
            wire.encode(body),
            deadline_sec=deadline_sec,
            is_repeatable=False,
            tries=tries,
            is_poll=wait_sec > 0,
        )
        if reply.status == 204 or not reply.body:
            return None
        return wire.decode(reply.body, kind)

    async def _batch(
        self, path: str, items: Sequence[Any], kind: type[T], **more: Any
    ) -> list[T | ApiError]:
        """Up to 500 items, each answered on its own, in order. A refusal knows how many tries of
        the call were lost before: one of them may have done what is refused now."""
        wire.check_size(items, MAX_BATCH)
        reply, unknown = await self._transport.call(
            "POST",
            f"{self.base}{path}",
            wire.encode({"items": items, **more}),
            deadline_sec=self.deadline_sec,
        )
        results = wire.decode(reply.body, wire.BatchAnswer).results
        wire.check_count(results, items)
        answers: list[T | ApiError] = []
        for raw in results:
            refusal = wire.refusal_in(wire.decode(raw, dict[str, Any]))
            if refusal is not None:
                refusal.unknown_tries = unknown
            answers.append(refusal or wire.decode(raw, kind))
        return answers

    async def _batch_briefly(
        self, path: str, items: Sequence[Any], **more: Any
    ) -> list[ApiError | None]:
        """The same, but learn only what was refused: cheaper where nobody looks at the rest."""
        wire.check_size(items, MAX_BATCH)
        reply, _ = await self._transport.call(
            "POST",
            f"{self.base}{path}",
            wire.encode({"items": items, **more}),
            deadline_sec=self.deadline_sec,
        )
        found = wire.decode(reply.body, wire.BriefAnswer).results
        wire.check_count(found, items)
        if all(item.code is None and not isinstance(item.error, dict) for item in found):
            return [None] * len(found)
        return [
            wire.refusal_in(item) for item in wire.decode(reply.body, dict[str, Any])["results"]
        ]
