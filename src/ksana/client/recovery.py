"""What a worker does after a request for jobs that failed: raise what will never pass, else wait a
little and say so once."""

import asyncio
import contextlib
import logging
from typing import Any

from ksana.client.contact import ServerContact
from ksana.client.errors import ApiError, ClientError
from ksana.client.pull_worker import PullWorker
from ksana.client.transport import CallBackoff

EARLY_EMPTY = CallBackoff(first_sec=0.02, most_sec=0.25)
"""The pause after an empty answer that came long before the long poll should have ended: a server
that does not wait."""

log = logging.getLogger("ksana.client")


class Recovery:
    """Counts failures in a row. Belongs to one worker."""

    def __init__(self, worker: PullWorker[Any], address: str, backoff: CallBackoff) -> None:
        self._worker = worker
        self._backoff = backoff
        self._contact = ServerContact(f"worker {worker.worker_id}", address, worker.clock)
        self._failures = 0

    @property
    def is_lost(self) -> bool:
        """Tell whether the last try failed."""
        return self._contact.is_lost

    def on_answer(self) -> None:
        """The server answered."""
        self._failures = 0
        self._contact.on_answer()

    async def wait_after(self, error: ClientError) -> None:
        """Wait before the next try. Raise the error where the server refuses us for good."""
        if (
            isinstance(error, ApiError)
            and error.code
            and error.status < 500
            and error.status != 429
        ):
            log.error("the server refuses to hand out jobs: %s", error)
            raise error
        self._failures += 1
        pause_sec = self._backoff.pause(
            self._failures, error.retry_after_sec if isinstance(error, ApiError) else None
        )
        self._contact.on_failure(error, pause_sec)
        await self.pause(pause_sec)

    async def pause(self, pause_sec: float) -> None:
        """Wait, but not longer than until a stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_sec):
                await self._worker.wait_for_stop()
