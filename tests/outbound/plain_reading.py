"""Answers read as the plain client reads them."""

from typing import Any

from ksana.outbound.plain.response import ResponseError, ResponseParser


class Read:
    """What came of feeding an answer piece by piece, and of the end of the connection after it."""

    def __init__(
        self,
        pieces: list[bytes],
        *,
        is_head: bool = False,
        max_body: int | None = None,
        cap: int = 1 << 20,
    ) -> None:
        self.answer = ResponseParser(is_head, max_body, cap)
        self.error: int | None = None
        self.message = ""
        self.was_whole = False
        rest = list(pieces)
        try:
            while rest and not self.was_whole:
                self.was_whole = self.answer.feed(rest.pop(0))
            if not self.was_whole:
                self.answer.finish()
        except ResponseError as error:
            self.error, self.message = error.code, error.message
        # Bytes that came in a piece of their own would meet an idle connection, and end it.
        self.can_keep = self.answer.can_keep and self.was_whole and not rest

    @property
    def outcome(self) -> tuple[Any, ...]:
        if self.error is not None:
            return (self.error, self.message)
        answer = self.answer
        return (
            answer.status,
            answer.body,
            answer.room < 0,
            answer.retry_after,
            answer.location,
            self.can_keep,
        )


def read(data: bytes, **options: Any) -> Read:
    return Read([data], **options)
