"""A transport that sends nothing: it writes down each request and answers as it is told."""

import json
from typing import Any

from ksana.client.api_client import ApiClient
from ksana.client.connection import HttpReply
from ksana.client.errors import ClientError


class FakeTransport:
    """Takes the place of a client's transport."""

    def __init__(self, client: ApiClient) -> None:
        client._transport = self  # type: ignore[assignment]
        self.answers: list[Any] = []
        self.sent: list[tuple[str, str, Any]] = []
        self.how: list[dict[str, Any]] = []
        self.unknown = 0
        self.is_closed = False

    async def call(
        self, method: str, path: str, body: bytes | None = None, **how: Any
    ) -> tuple[HttpReply, int]:
        self.sent.append((method, path, None if body is None else json.loads(body)))
        self.how.append(how)
        answer = self.answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        if isinstance(answer, HttpReply):
            return answer, self.unknown
        status, text = (200, json.dumps(answer).encode()) if answer is not None else (204, b"")
        return HttpReply(status, text, None, 0.0), self.unknown

    async def close(self) -> None:
        self.is_closed = True

    @property
    def last(self) -> tuple[str, str, Any]:
        return self.sent[-1]
