"""The recorder: attempts that ended are gathered and written in the next group commit, one
transaction for all of them, each write fenced by its run's token."""

import base64
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import StoreDownError
from ksana.base.ids import new_token
from ksana.base.instant import MILLISECOND, SECOND, Instant
from ksana.domain.tasks import rescue
from ksana.domain.tasks.call_records import CallEntry, write_call
from ksana.domain.tasks.changes import ALERTING, AttemptRecord, RunChange
from ksana.domain.tasks.job_runs import end_by_job
from ksana.domain.tasks.outcome import classify, decide_attempt, end_attempt
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.dispatcher import Watermark
from ksana.engine.tasks.requests import shown_body
from ksana.engine.tasks.run_writer import write_changes
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

WELL: Final = frozenset({"SUCCESS", "CALLBACK_PENDING", "CALLBACK_SUCCESS"})
"""Statuses of runs whose attempt did not fail."""


class Recorded(msgspec.Struct):
    """What a batch of outcomes came to."""

    ready_hosts: set[str]
    wakes: bool
    statuses: list[tuple[AttemptOver, str]]
    refused: int
    watermark: int = 0
    """The watermark that was written with them; 0 if none was."""


def record_outcomes(
    tx: TasksTx, ended: list[AttemptOver], sole: bool, instance_id: str = "", watermark: int = 0
) -> Recorded:
    """Write every outcome that is still ours to write; the rest are counted and let go. With
    `watermark` the instance's watermark is moved in the same transaction."""
    if not sole:  # every instance changes tasks in one order, or two would wait for each other
        ended = sorted(ended, key=lambda one: one.held.task.id)
    overs: list[AttemptOver] = []
    changes: list[RunChange] = []
    refused: list[AttemptOver] = []
    for over in ended:
        change = _change_of(tx, over)
        if change is None:
            refused.append(over)
        else:
            overs.append(over)
            changes.append(change)
    written = write_changes(tx, changes, lock=not sole)
    statuses: list[tuple[AttemptOver, str]] = []
    for over, change, is_done in zip(overs, changes, written.done, strict=True):
        if is_done:
            statuses.append((over, change.new))
        else:
            refused.append(over)
    for over in refused:
        _refuse(tx, over)
    if watermark:
        tx.instances.note_begun(instance_id, watermark)
    return Recorded(written.ready_hosts, written.wakes, statuses, len(refused), watermark)


def _change_of(tx: TasksTx, over: AttemptOver) -> RunChange | None:
    """The change an attempt's end makes; None if its run is another's already."""
    held, reply, now = over.held, over.reply, tx.now
    if over.job is not None and over.job.end is not None:
        return end_by_job(held, over.job, over.job.end, over.ended_at, now)
    if over.request is None and reply.kind == "aborted":
        # Never sent, because the lease of this instance was lost: no attempt was made.
        run = tx.runs.find(held.run_id)
        if run is None or run.status != "RUNNING" or run.token != held.token:
            return None
        return rescue.give_back(run, now, new_token())
    verdict = classify(reply.kind, reply.status, reply.retry_after, now, reply.error)
    decided = decide_attempt(held, verdict, reply.kind, reply.sends, now)
    return end_attempt(
        held,
        decided,
        verdict.error,
        _record_of(over),
        entry_of(over, decided.status, verdict.error),
        over.started_at,
        over.ended_at,
    )


def _record_of(over: AttemptOver) -> AttemptRecord:
    reply, request = over.reply, over.request
    body: str | None = None
    encoding = None
    if reply.body:
        try:
            body = reply.body.decode()
        except UnicodeDecodeError:
            body = None
        if body is None or "\x00" in body:  # PostgreSQL cannot keep a NUL as text
            body, encoding = base64.b64encode(reply.body).decode(), "base64"
    elif reply.kind == "answered":
        body = ""
    # By position, in the order of the fields: there is one for every call.
    return AttemptRecord(
        over.kept_headers,
        None if request is None or request.body is None else shown_body(request),
        reply.status,
        body,
        reply.truncated,
        encoding,
    )


def entry_of(over: AttemptOver, status: str, error: str | None) -> bytes:
    """The entry of a call among its run's attempts."""
    held, reply, timing = over.held, over.reply, over.reply.timing
    # By position, in the order of the fields: there is one for every call.
    return write_call(
        CallEntry(
            held.attempt,
            over.started_at,
            over.ended_at - over.started_at,
            status,
            reply.status,
            error,
            held.held_by,
            reply.sends,
            round(timing.dns_ms * MILLISECOND),
            round(timing.connect_ms * MILLISECOND),
            round(timing.tls_ms * MILLISECOND),
            round(timing.first_byte_ms * MILLISECOND),
            round(timing.total_ms * MILLISECOND),
        )
    )


def _refuse(tx: TasksTx, over: AttemptOver) -> None:
    """The run is no longer ours: cancelled, ended by its callback, or taken over. The result is
    dropped, and an event says so."""
    data = {
        "task_id": over.held.task.id,
        "attempt": over.held.attempt,
        "reason": "TOKEN_VOID",
        "kind": over.reply.kind,
        "response_code": over.reply.status,
    }
    tx.events.append("RUN", over.held.run_id, "RUN_RESULT_REFUSED", data)


MAX_OUTCOMES: Final = 500
MIN_INTERVAL: Final = 4 * MILLISECOND
"""Outcomes of a few milliseconds share a commit; after a pause the first is written at once."""

BUSY: Final = 64
BUSY_INTERVAL: Final = 32 * MILLISECOND
"""When that many came in one interval, the time is needed for calls: fewer and larger commits."""


class RunObserver(Protocol):
    """Is told what becomes of attempts: metrics, logs, history."""

    def recorded(self, ended: Sequence[tuple[AttemptOver, str]]) -> None:
        """These are on disk, and the run of each has this status now."""
        ...


class Recorder:
    """Owns the attempts that ended and are not written yet."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance_id: str,
        observers: tuple[RunObserver, ...],
        watermark: Watermark,
        on_recorded: Callable[[Recorded], None],
    ) -> None:
        """`on_recorded` is told what each commit came to."""
        self._store = store
        self._clock = clock
        self._instance_id = instance_id
        self._observers = observers
        self._watermark = watermark
        self._on_recorded = on_recorded
        self._over: list[AttemptOver] = []
        self._recording: list[AttemptOver] = []
        self.pump = Pump(
            "outcomes", clock, self._record, poll_us=30 * SECOND, min_interval_us=MIN_INTERVAL
        )

    def add(self, over: AttemptOver) -> None:
        """An attempt ended."""
        self._over.append(over)
        if len(self._over) == 1:
            self.pump.signal()

    def known_runs(self) -> set[int]:
        """The runs whose outcome is not written yet."""
        return {over.held.run_id for over in (*self._over, *self._recording)}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._over and not self._recording

    async def _record(self) -> Instant | None:
        watermark = self._watermark.find_next(self._clock.monotonic())
        if self._over or watermark:
            batch, self._over = self._over[:MAX_OUTCOMES], self._over[MAX_OUTCOMES:]
            self._recording = batch
            try:
                recorded = await self._write(batch, watermark)
            except StoreDownError:
                # Nothing was written: keep them. The guard makes a repeat harmless if something
                # was.
                self._over[:0] = batch
                raise
            finally:
                self._recording = []
            self.pump.min_interval_us = BUSY_INTERVAL if len(batch) >= BUSY else MIN_INTERVAL
            self._on_recorded(recorded)
            for observer in self._observers:
                observer.recorded(recorded.statuses)
            failed = [one for one in recorded.statuses if one[1] not in WELL]
            if failed:
                log_failures(failed)
        else:
            self._on_recorded(Recorded(set(), False, [], 0))
        if len(self._over) >= MAX_OUTCOMES:
            return AGAIN
        if self._over or self._watermark.blocked:
            self.pump.signal()
        return None

    async def _write(self, batch: list[AttemptOver], watermark: int = 0) -> Recorded:
        """Record a batch. An outcome the store will not take is left to the rescue of orphans; the
        others are written without it."""
        try:
            recorded: Recorded = await self._store.transact(
                record_outcomes, batch, self._store.sole, self._instance_id, watermark
            )
            return recorded
        except StoreDownError:
            raise
        except Exception as error:
            if not batch:  # the watermark alone: nothing to leave out
                raise
            if len(batch) == 1:
                log.error(
                    "an outcome cannot be recorded", run_id=batch[0].held.run_id, exc_info=error
                )
                return Recorded(set(), False, [], 0)
        middle = len(batch) // 2
        one, other = await self._write(batch[:middle]), await self._write(batch[middle:])
        return Recorded(
            one.ready_hosts | other.ready_hosts,
            one.wakes or other.wakes,
            one.statuses + other.statuses,
            one.refused + other.refused,
        )


def log_failures(failed: Sequence[tuple[AttemptOver, str]]) -> None:
    """One line for each attempt that failed, once it is recorded. Ends that no attempt made are
    logged from their events."""
    for over, status in failed:
        held, reply = over.held, over.reply
        members = {"alert": True} if status in ALERTING else {}
        log.warning(
            "attempt failed",
            run_id=held.run_id,
            task_id=held.task.id,
            job_id=held.task.job_id,
            attempt=held.attempt,
            status=status,
            err=reply.error or f"HTTP {reply.status}",
            latency_ms=round(reply.timing.total_ms, 3),
            target_url=held.task.definition.target_url,
            trace_id=held.trace_id,
            **members,
        )
