"""Results on their way to the server: in batches, each until the server has answered for it.

A result is sent again and again until it is accepted or refused. That is safe, because the same
release twice is answered the same, and a release of a lease that is ours no longer is refused; the
server, not we, decides that. No result is held back to fill a batch: a batch is what came in while
the last one was under way.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from ksana.client.errors import (
    AccessError,
    ApiConflictError,
    ApiError,
    ApiNotFoundError,
    ClientError,
    InvalidRequestError,
)
from ksana.client.handlers import MAX_ERROR_CHARS, one_line
from ksana.client.leased_job import LeasedJob
from ksana.client.queue import MAX_LEASE_BATCH, QueueClient
from ksana.client.shapes import ReleaseItem
from ksana.client.transport import CallBackoff

FULL_ENOUGH = 200
"""So many waiting results are worth a second request beside the one under way."""
MAX_REQUESTS = 2
MAX_BATCH_BYTES = 950_000
"""A body may have 1 MiB."""
ITEM_BYTES = 400
"""About what an item takes besides its result."""

log = logging.getLogger("ksana.client")


class PendingRelease:
    """A result on its way."""

    __slots__ = ("held", "is_substitute", "item", "size")

    def __init__(
        self, held: LeasedJob, item: ReleaseItem, size: int, *, is_substitute: bool = False
    ) -> None:
        self.held = held
        self.item = item
        self.size = size
        self.is_substitute = is_substitute
        """True when the server refused the result itself and this reports that failure instead."""


Settle = Callable[[LeasedJob, ReleaseItem, ApiError | None], None]
"""Called with the server's answer: None is accepted, an error is refused for good."""


class Releases:
    """Takes results and sees them through."""

    def __init__(self, client: QueueClient, settle: Settle, backoff: CallBackoff) -> None:
        self._client = client
        self._settle = settle
        self._backoff = backoff
        self._waiting: deque[PendingRelease] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._sending = 0
        """Flights that will still look for what waits. A request's task is done a turn later than
        its last look."""
        self._in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __len__(self) -> int:
        return len(self._waiting) + self._in_flight

    def add(self, held: LeasedJob, item: ReleaseItem) -> None:
        """Take a result. It leaves with what else ends in this turn of the event loop, or with the
        next batch."""
        self._put(
            PendingRelease(
                held,
                item,
                ITEM_BYTES + (len(bytes(item.result_data)) if item.result_data is not None else 0),
            )
        )

    async def drain(self, within_sec: float) -> bool:
        """Wait until the server has answered for all results; False if not in time."""
        try:
            async with asyncio.timeout(within_sec):
                await self._is_idle.wait()
        except TimeoutError:
            return False
        return True

    async def abandon(self) -> list[LeasedJob]:
        """Stop sending; list the results without an answer."""
        requests = list(self._requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        left = [waiting.held for waiting in self._waiting]
        self._waiting.clear()
        self._is_idle.set()
        return left

    def _put(self, waiting: PendingRelease) -> None:
        self._waiting.append(waiting)
        if not self._sending or (
            self._sending < MAX_REQUESTS and len(self._waiting) >= FULL_ENOUGH
        ):
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

    def _take(self) -> list[PendingRelease]:
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while (
            self._waiting
            and len(batch) < MAX_LEASE_BATCH
            and size + self._waiting[0].size <= MAX_BATCH_BYTES
        ):
            batch.append(self._waiting.popleft())
            size += batch[-1].size
        return batch

    async def _deliver(self, batch: list[PendingRelease]) -> None:
        """Send the batch until every result has its answer, or waits anew as something smaller."""
        failures = 0
        while batch:
            asked_sec: float | None = None
            try:
                answers = await self._client.release_batch_briefly(
                    [waiting.item for waiting in batch]
                )
            except ClientError as error:
                if self._is_refused(error):
                    await self._deliver_smaller(batch, error)
                    return
                log.warning("releasing %d results failed, will repeat: %s", len(batch), error)
                asked_sec = error.retry_after_sec if isinstance(error, ApiError) else None
            else:
                batch = self._settle_all(batch, answers)
                if not batch:
                    return
            failures += 1
            await asyncio.sleep(self._backoff.pause(failures, asked_sec))

    def _settle_all(
        self, batch: list[PendingRelease], answers: list[ApiError | None]
    ) -> list[PendingRelease]:
        """Report the answers; list what must be sent again."""
        again: list[PendingRelease] = []
        for waiting, answer in zip(batch, answers, strict=True):
            if answer is None or isinstance(answer, ApiConflictError | ApiNotFoundError):
                self._settle(waiting.held, waiting.item, answer)
            elif isinstance(answer, InvalidRequestError):
                self._substitute(waiting, answer)
            else:
                again.append(waiting)
        return again

    async def _deliver_smaller(self, batch: list[PendingRelease], error: ClientError) -> None:
        """The batch as a whole was refused: find the culprit by halving."""
        if len(batch) > 1:
            half = len(batch) // 2
            await self._deliver(batch[:half])
            await self._deliver(batch[half:])
        else:
            assert isinstance(error, ApiError)
            self._substitute(batch[0], error)

    def _substitute(self, waiting: PendingRelease, error: ApiError) -> None:
        """The server cannot take this result: report that as the job's failure, once."""
        if waiting.is_substitute:
            self._settle(waiting.held, waiting.item, error)
            return
        log.error("the server refused the result of job %s: %s", waiting.item.job_id, error)
        text = f"the server refused the result: {one_line(error)}"[:MAX_ERROR_CHARS]
        item = msgspec.structs.replace(
            waiting.item, status="FAILED", result_data=None, error=text, metrics=None
        )
        self._put(PendingRelease(waiting.held, item, ITEM_BYTES, is_substitute=True))

    @staticmethod
    def _is_refused(error: ClientError) -> bool:
        """Tell whether sending the same again is pointless. A refusal without a code is a proxy's,
        and may pass."""
        if not isinstance(error, ApiError) or not error.code or isinstance(error, AccessError):
            return False
        return isinstance(error, InvalidRequestError | ApiConflictError | ApiNotFoundError)
