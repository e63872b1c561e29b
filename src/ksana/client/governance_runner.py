"""The governance jobs a worker holds: each is run by its handler, kept by the renewals, and what
came of it goes to the server."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Micros
from ksana.client import held_lease, wire
from ksana.client.context import Fail, JobCancelled, Retry
from ksana.client.errors import (
    ApiConflictError,
    ApiError,
    ApiNotFoundError,
    ClientError,
    InvalidRequestError,
    LeaseLostError,
)
from ksana.client.governance_client import GovernanceClient, show_members, show_next
from ksana.client.governance_context import Done, GovernanceContext, RetryAfter
from ksana.client.governance_shapes import AckItem, FailItem, GovernanceJob, RenewItem
from ksana.client.handlers import (
    MAX_ERROR_CHARS,
    MAX_RESULT_BYTES,
    DeadlinePassed,
    call_handler,
    check_deadline,
    check_handler,
    describe,
    is_async_handler,
    one_line,
)
from ksana.client.held_lease import HeldLease
from ksana.client.lease_runner import LeaseRunner, tell_lost
from ksana.client.lease_thread import LeaseThread
from ksana.client.outbox import MAX_BATCH, Outbox
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff
from ksana.client.wire import is_outcome_unknown

Result = AckItem | FailItem
NOTHING_MORE = Done()
log = logging.getLogger("ksana.client")


class GovernanceHandler:
    """A handler of an action and how it wants to be run."""

    def __init__(
        self, action: str, handler: Callable[..., Any], deadline_sec: float | None
    ) -> None:
        check_handler(handler, f"the handler of {action!r}")
        self.action = action
        self.handler = handler
        self.is_async = is_async_handler(handler)
        self.deadline_sec = deadline_sec
        check_deadline(action, self.is_async, deadline_sec)

    async def run(self, ctx: GovernanceContext, executor: Executor | None) -> Any:
        """Call it."""
        return await call_handler(self.handler, ctx, self.is_async, executor, self.deadline_sec)


class HeldGovernanceJob(HeldLease):
    """A governance job under its lease."""

    __slots__ = ("job",)

    def __init__(self, job: GovernanceJob, sent_at: Micros, ttl_us: Micros) -> None:
        super().__init__(job.job_id, job.job_id, sent_at, ttl_us)
        self.job = job


class GovernanceResults(Outbox[HeldGovernanceJob, Result]):
    """What came of jobs, on its way: acks in one request, failures in another."""

    def __init__(
        self,
        client: GovernanceClient,
        settle: Callable[[HeldGovernanceJob, Result, ApiError | None], None],
        backoff: CallBackoff,
    ) -> None:
        super().__init__(settle, backoff)
        self._client = client
        self._unsure: set[str | None] = set()
        """Leases of failures that the server may know of already."""

    async def send(self, items: Sequence[Result]) -> list[ApiError | None]:
        acks = [item for item in items if isinstance(item, AckItem)]
        failures = [item for item in items if isinstance(item, FailItem)]
        answers: dict[str, ApiError | None] = {}
        if failures:
            answers |= await self._send_failures(failures)
        if acks:
            refusals = await self._client.ack_batch_briefly(acks)
            answers |= {ack.job_id: answer for ack, answer in zip(acks, refusals, strict=True)}
        return [answers[item.job_id] for item in items]

    async def _send_failures(self, failures: list[FailItem]) -> dict[str, ApiError | None]:
        """Unlike an ack, a failure sent again is refused: the lease ended with the first."""
        try:
            found = await self._client.fail_batch(failures)
        except ClientError as error:
            if is_outcome_unknown(error):
                self._unsure |= {failure.lease_token for failure in failures}
            raise
        answers: dict[str, ApiError | None] = {}
        for failure, answer in zip(failures, found, strict=True):
            refusal = answer if isinstance(answer, ApiError) else None
            is_unsure = failure.lease_token in self._unsure or (refusal and refusal.unknown_tries)
            if isinstance(refusal, LeaseLostError) and is_unsure:
                refusal = None  # by ourselves
            self._unsure.discard(failure.lease_token)
            answers[failure.job_id] = refusal
        return answers

    def is_unusable(self, item: Result, error: ApiError) -> bool:
        # A conflict that is not about the lease is about the object: its move is not legal.
        return isinstance(error, InvalidRequestError) or (
            isinstance(error, ApiConflictError) and not isinstance(error, LeaseLostError)
        )

    def substitute(self, item: Result, error: ApiError) -> FailItem:
        text = f"the server refused the result: {one_line(error)}"[:MAX_ERROR_CHARS]
        return FailItem(
            job_id=item.job_id,
            error=text,
            lease_token=item.lease_token,
            worker_id=item.worker_id,
        )

    def size_of(self, item: Result) -> int:
        if isinstance(item, FailItem):
            return len(item.error) * 4
        is_plain = item.object is None and item.evidence_refs is None
        return 0 if is_plain else len(wire.encode((item.object, item.evidence_refs)))


class GovernanceRenewals(LeaseThread[HeldGovernanceJob, GovernanceClient]):
    """Keeps the leases of governance jobs."""

    most = MAX_BATCH

    def __init__(
        self,
        client: GovernanceClient,
        worker_id: str,
        held: Mapping[str, HeldGovernanceJob],
        ttl_us: Micros,
        clock: Clock,
        on_lost: Callable[[HeldGovernanceJob, str], None],
    ) -> None:
        super().__init__(f"ksana-renewals-{worker_id}", client, held, ttl_us, clock, on_lost)

    async def renew(self, client: GovernanceClient, due: list[HeldGovernanceJob]) -> None:
        sent_at = self._clock.monotonic()
        items = [RenewItem(job_id=held.job_id, lease_token=held.job.lease_token) for held in due]
        try:
            answers = await client.renew_batch(items, lease_sec=self._ttl_us / SECOND)
        except ClientError as error:
            log.warning("renewal of %d leases failed: %s", len(due), error)
            self._postpone(due)
            return
        for held, answer in zip(due, answers, strict=True):
            if answer is None:
                held.renew(sent_at, self._ttl_us)
            elif isinstance(answer, ApiConflictError | ApiNotFoundError):
                held.fence_at = sent_at  # renewed no more
                self._on_lost(held, str(answer))
            else:
                log.warning("renewal of job %s failed: %s", held.job_id, answer)
                self._postpone([held])


class GovernanceRunner(LeaseRunner[HeldGovernanceJob]):
    """Runs jobs from the pull's answer to the server's answer to what came of them."""

    def __init__(
        self,
        client: GovernanceClient,
        worker_id: str,
        handlers: Mapping[str, GovernanceHandler],
        stats: WorkerStats,
        clock: Clock,
        *,
        concurrency: int,
        ttl_us: Micros,
        backoff: CallBackoff,
        retry_delay_sec: float,
        on_lost: Callable[[GovernanceJob, str], None] | None,
    ) -> None:
        super().__init__(clock, concurrency=concurrency, ttl_us=ttl_us)
        self._client = client
        self._worker_id = worker_id
        self._handlers = handlers
        self._stats = stats
        self._retry_delay_sec = retry_delay_sec
        self._on_lost = on_lost
        self._results = GovernanceResults(client, self.settle, backoff)

    @property
    def results(self) -> GovernanceResults:
        return self._results

    def start(self, executor: Executor) -> None:
        """Take the executor of sync handlers."""
        self._loop = asyncio.get_running_loop()
        self._executor = executor

    def begin(self, job: GovernanceJob, sent_at: Micros) -> None:
        """Start a job whose lease is ours since `sent_at` or a little later."""
        held = HeldGovernanceJob(job, sent_at, self._ttl_us)
        handler = self._handlers.get(job.action)
        held.is_async = handler is not None and handler.is_async
        self._stats.claimed += 1
        self._hold(held, self._run(held))

    async def _run(self, held: HeldGovernanceJob) -> None:
        result = await self._run_handler(held)
        if self._may_send(held):
            self._results.add(held, result)

    async def _run_handler(self, held: HeldGovernanceJob) -> Result:
        job = held.job
        handler = self._handlers.get(job.action)
        if handler is None:
            return self._fail(held, f"this worker has no handler for {job.action!r}")
        ctx = GovernanceContext(job, self._worker_id, held.cancelled, self._client)
        try:
            return self._ack(held, await handler.run(ctx, self._executor))
        except (asyncio.CancelledError, JobCancelled):
            if held.cause is held_lease.BY_STOP:
                # Another worker may begin at once.
                text = "the worker stopped before the job ended"
                return self._fail(held, text, retry_delay_sec=0.0)
            return self._fail(held, held.cancelled.reason or "the handler was cancelled")
        except RetryAfter as error:
            return self._fail(held, one_line(error), retry_delay_sec=error.delay_sec)
        except Retry as error:
            return self._fail(held, one_line(error))
        except Fail as error:
            return self._fail(held, one_line(error), is_final=not error.retry)
        except DeadlinePassed:
            return self._fail(held, f"ran longer than {handler.deadline_sec:g} s")
        except Exception as error:
            return self._fail(held, describe(error), raised=error)

    def _ack(self, held: HeldGovernanceJob, answered: Any) -> Result:
        done = NOTHING_MORE if answered is None else answered
        if not isinstance(done, Done):
            kind = type(done).__name__
            return self._fail(held, f"the handler answered a {kind}, not None or Done(…)")
        try:
            item = AckItem(
                job_id=held.job_id,
                lease_token=held.job.lease_token,
                worker_id=self._worker_id,
                next_action_at=show_next(done.next_action_at),
                next_action=done.next_action,
                object=None if done.changes is None else show_members(done.changes),
                evidence_refs=None if done.evidence_refs is None else list(done.evidence_refs),
                audit_event_id=done.audit_event_id,
            )
            size = self._results.size_of(item)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return self._fail(held, f"what the handler answered is not JSON: {one_line(error)}")
        if size > MAX_RESULT_BYTES:
            return self._fail(held, f"the handler answered {size} bytes, not {MAX_RESULT_BYTES}")
        return item

    def _fail(
        self,
        held: HeldGovernanceJob,
        error: str,
        *,
        retry_delay_sec: float | None = None,
        is_final: bool = False,
        raised: Exception | None = None,
    ) -> FailItem:
        job = held.job
        log.log(
            logging.WARNING if raised is None else logging.ERROR,
            "job %s (%s of %s %s): attempt %d of %d failed: %s",
            job.job_id,
            job.action,
            job.object_type,
            job.object_id,
            job.attempt + 1,
            job.max_attempts,
            error,
            exc_info=raised,
        )
        return FailItem(
            job_id=job.job_id,
            error=error,
            retry_delay_sec=(self._retry_delay_sec if retry_delay_sec is None else retry_delay_sec),
            retry=not is_final,
            lease_token=job.lease_token,
            worker_id=self._worker_id,
        )

    def settle(self, held: HeldGovernanceJob, item: Result, refusal: ApiError | None) -> None:
        """Take the server's answer to what came of a job."""
        self.held.pop(held.key, None)
        if refusal is not None:
            held.phase = held_lease.LOST
            self.report_lost(held, str(refusal))
        elif isinstance(item, AckItem):
            self._stats.succeeded += 1
        else:
            self._stats.failed += 1
        self.has_room.set()

    def report_lost(self, held: HeldGovernanceJob, reason: str) -> None:
        self._stats.lost += 1
        tell_lost(self._on_lost, held.job, reason)
