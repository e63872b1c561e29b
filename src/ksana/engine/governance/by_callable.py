"""Actions performed by a Python function: `async def` on the event loop, any other in a thread.

A thread cannot be ended. One that runs on after its time keeps its place: so few jobs are taken
that each finds a free one, and a function that never returns uses up its places and no more.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ksana.base import log
from ksana.domain.governance.records import GovernanceJob, GovernedObject
from ksana.engine.governance.performing import Performed, read_answer, tell

PLACES: Final = 16


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function runs on the event loop."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


class PerformByCallable:
    """Calls one function with the job and its object as a dict, and reads what it answers: None, or
    a dict as a webhook would answer it."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function
        self._is_async = is_async(function)
        self._busy = 0

    def count_free(self) -> int:
        """How many jobs may be performed now."""
        return PLACES - self._busy

    async def __call__(self, job: GovernanceJob, governed: GovernedObject | None) -> Performed:
        told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(tell(job, governed)))
        try:
            said = await (
                self._function(told) if self._is_async else self._call_in_thread(job.job_id, told)
            )
        except Exception as error:
            # The store keeps one line of it; the traceback is kept nowhere else.
            log.exception("the callable failed", job_id=job.job_id, action=job.action)
            return Performed(error=f"{type(error).__name__}: {error}")
        try:
            return Performed() if said is None else read_answer(said)
        except ValueError as error:
            return Performed(error=f"the callable's answer cannot be read: {error}")

    def _call_in_thread(self, job_id: str, told: dict[str, Any]) -> "asyncio.Future[Any]":
        """Start a thread that nobody waits for at the end of the program."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._busy += 1

        def settle(said: Any, error: BaseException | None) -> None:
            self._busy -= 1
            if answer.done():  # its time was over, and nobody waits for it any more
                return
            if error is None:
                answer.set_result(said)
            else:
                answer.set_exception(error)

        def run() -> None:
            said, raised = None, None
            try:
                said = self._function(told)
            except Exception as error:
                raised = error
            except BaseException as error:  # SystemExit from a function is its failure, not ours
                raised = RuntimeError(f"{type(error).__name__}: {error}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, said, raised)

        threading.Thread(target=run, name=f"governance-{job_id}", daemon=True).start()
        return answer
