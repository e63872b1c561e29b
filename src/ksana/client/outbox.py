"""Results on their way to the server: in batches, each until the server has answered for it.

A result is sent again and again until it is accepted or refused. That is safe, because the same
result twice is answered the same, and one for a lease that is ours no longer is refused; the
server, not we, decides that. No result is held back to fill a batch: a batch is what came in while
the last one was under way.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from ksana.client.errors import (
    AccessError,
    ApiConflictError,
    ApiError,
    ApiNotFoundError,
    ClientError,
    InvalidRequestError,
)
from ksana.client.held_lease import HeldLease
from ksana.client.transport import CallBackoff

FULL_ENOUGH = 200
"""So many waiting results are worth a second request beside the one under way."""
MAX_REQUESTS = 2
MAX_BATCH = 500
MAX_BATCH_BYTES = 950_000
"""A body may have 1 MiB."""

H = TypeVar("H", bound=HeldLease)
I = TypeVar("I")  # noqa: E741
log = logging.getLogger("ksana.client")


class PendingResult(msgspec.Struct, Generic[H, I], eq=False, gc=False):
    """A result on its way."""

    held: H
    item: I
    size: int
    is_substitute: bool
    """True when the server refused the result itself and this reports that failure instead."""


class Outbox(ABC, Generic[H, I]):
    """Takes results and sees them through. `settle` is called with the server's answer: None is
    accepted, an error is refused for good."""

    item_bytes: ClassVar[int] = 400
    """About what an item takes besides its result."""

    def __init__(
        self, settle: Callable[[H, I, ApiError | None], None], backoff: CallBackoff
    ) -> None:
        self._settle = settle
        self._backoff = backoff
        self._waiting: deque[PendingResult[H, I]] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._sending = 0
        """Flights that will still look for what waits. A request's task is done a turn later than
        its last look."""
        self._in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @abstractmethod
    async def send(self, items: Sequence[I]) -> list[ApiError | None]:
        """Send a batch; answer for each item what the server said, in order. Raise a ClientError
        where the batch as a whole was refused, or nobody answered."""

    @abstractmethod
    def substitute(self, item: I, error: ApiError) -> I:
        """A failure in the place of a result that the server cannot take."""

    @abstractmethod
    def size_of(self, item: I) -> int:
        """About how many bytes a result takes."""

    def is_unusable(self, item: I, error: ApiError) -> bool:
        """Whether the server cannot take this result, but would take a failure."""
        return isinstance(error, InvalidRequestError)

    def __len__(self) -> int:
        return len(self._waiting) + self._in_flight

    def add(self, held: H, item: I, is_substitute: bool = False) -> None:
        """Take a result. It leaves with what else ends in this turn of the event loop, or with the
        next batch."""
        size = self.item_bytes + self.size_of(item)
        self._waiting.append(PendingResult(held, item, size, is_substitute))
        if not self._sending or (
            self._sending < MAX_REQUESTS and len(self._waiting) >= FULL_ENOUGH
        ):
            self._begin_request()

    async def drain(self, within_sec: float) -> bool:
        """Wait until the server has answered for all results; False if not in time."""
        try:
            async with asyncio.timeout(within_sec):
                await self._is_idle.wait()
        except TimeoutError:
            return False
        return True

    async def abandon(self) -> list[H]:
        """Stop sending; list the results without an answer."""
        requests = list(self._requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        left = [waiting.held for waiting in self._waiting]
        self._waiting.clear()
        self._is_idle.set()
        return left

    def _begin_request(self) -> None:
        self._is_idle.clear()
        self._sending += 1
        # A task starts in the next turn of the loop: all that ends in this one goes with it.
        request = asyncio.get_running_loop().create_task(self._send_batches())
        self._requests.add(request)
        request.add_done_callback(self._on_request_done)

    def _on_request_done(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        if not request.cancelled() and request.exception() is not None:
            log.error("sending results failed", exc_info=request.exception())

    async def _send_batches(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                self._in_flight += len(batch)
                try:
                    await self._deliver(batch)
                except asyncio.CancelledError:
                    self._waiting.extendleft(reversed(batch))
                    raise
                finally:
                    self._in_flight -= len(batch)
        finally:
            self._sending -= 1
            if not self._sending:
                self._is_idle.set()

    def _take(self) -> list[PendingResult[H, I]]:
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while (
            self._waiting
            and len(batch) < MAX_BATCH
            and size + self._waiting[0].size <= MAX_BATCH_BYTES
        ):
            batch.append(self._waiting.popleft())
            size += batch[-1].size
        return batch

    async def _deliver(self, batch: list[PendingResult[H, I]]) -> None:
        """Send the batch until every result has its answer, or waits anew as something smaller."""
        failures = 0
        while batch:
            asked_sec: float | None = None
            try:
                answers = await self.send([waiting.item for waiting in batch])
            except ClientError as error:
                if _is_refused(error):
                    await self._deliver_smaller(batch, error)
                    return
                log.warning("sending %d results failed, will repeat: %s", len(batch), error)
                asked_sec = error.retry_after_sec if isinstance(error, ApiError) else None
            else:
                batch = self._settle_all(batch, answers)
                if not batch:
                    return
            failures += 1
            await asyncio.sleep(self._backoff.pause(failures, asked_sec))

    def _settle_all(
        self, batch: list[PendingResult[H, I]], answers: list[ApiError | None]
    ) -> list[PendingResult[H, I]]:
        """Report the answers; list what must be sent again."""
        again: list[PendingResult[H, I]] = []
        for waiting, answer in zip(batch, answers, strict=True):
            if answer is None:
                self._settle(waiting.held, waiting.item, None)
            elif self.is_unusable(waiting.item, answer):
                self._substitute(waiting, answer)
            elif isinstance(answer, ApiConflictError | ApiNotFoundError):
                self._settle(waiting.held, waiting.item, answer)
            else:
                again.append(waiting)
        return again

    async def _deliver_smaller(self, batch: list[PendingResult[H, I]], error: ClientError) -> None:
        """The batch as a whole was refused: find the culprit by halving."""
        if len(batch) > 1:
            half = len(batch) // 2
            await self._deliver(batch[:half])
            await self._deliver(batch[half:])
        else:
            assert isinstance(error, ApiError)
            self._substitute(batch[0], error)

    def _substitute(self, waiting: PendingResult[H, I], error: ApiError) -> None:
        """The server cannot take this result: report that as the job's failure, once."""
        if waiting.is_substitute:
            self._settle(waiting.held, waiting.item, error)
            return
        log.error("the server refused the result of job %s: %s", waiting.held.job_id, error)
        self.add(waiting.held, self.substitute(waiting.item, error), is_substitute=True)


def _is_refused(error: ClientError) -> bool:
    """Tell whether sending the same again is pointless. A refusal without a code is a proxy's, and
    may pass."""
    if not isinstance(error, ApiError) or not error.code or isinstance(error, AccessError):
        return False
    return isinstance(error, InvalidRequestError | ApiConflictError | ApiNotFoundError)
