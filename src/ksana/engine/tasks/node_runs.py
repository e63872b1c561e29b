"""Runs of type `node`: this instance holds a ready run, submits its node job and waits for the end.

    ready runs ──claim──▶ RUNNING, held by us ──submit──▶ node job
    node job ends ──▶ its outcome is written with those of calls

A node job may be lost, and so may we. The run ends at the latest when its time is over. If we die
before, the rescue of orphans gives the run to another instance. Where node jobs survive us that one
takes the same job up under the same id, whether or not it had been submitted or had ended; where
they do not, the attempt is lost and the task's retries decide. Who only seemed dead stops waiting,
and leaves the job to whoever took it up.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ksana.base.clock import Clock
from ksana.base.errors import KsanaError, StoreDownError, UnavailableError
from ksana.base.ids import new_tokens
from ksana.base.instant import MILLISECOND, SECOND, Instant
from ksana.domain.handover import HandedEnd, HandedJob, job_id_of, request_id_of
from ksana.domain.tasks.job_runs import GONE, OVERDUE, is_taken_up
from ksana.domain.tasks.records import NODE_PLACE, ClaimedRun
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import AttemptOver, reply_of
from ksana.engine.tasks.claimer import claim_ready
from ksana.engine.tasks.dispatcher import InstanceLease
from ksana.engine.tasks.payloads import build_node_order
from ksana.ports.caller import NOT_OURS, Reply, Timing
from ksana.ports.handover import NodeOrder, RunNodeJobs
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

MOST: Final = 1000
"""Node jobs that one instance waits for. More runs wait in the store, for any instance."""

MAX_CLAIM: Final = 200
CANCELS_EVERY: Final = 400 * MILLISECOND
"""A cancel made on another instance is seen within a second."""

ELSEWHERE_EVERY: Final = SECOND
"""How often a job is asked for that another instance is in charge of."""

HERE_EVERY: Final = 5 * SECOND
"""How often it is looked whether one of ours still is."""


class NodeCall:
    """A node job that is waited for."""

    def __init__(self, run: ClaimedRun, started_at: Instant) -> None:
        self.run = run
        self.started_at = started_at
        self.changed = asyncio.Event()
        self.end: HandedEnd | None = None
        self.is_aborted = False

    def abort(self) -> None:
        """Stop waiting."""
        self.is_aborted = True
        self.changed.set()


class NodeRuns:
    """Owns the runs that wait for node jobs. `on_over` is told of attempts that ended."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        nodes: RunNodeJobs,
        instance_id: str,
        lease: InstanceLease,
        on_over: Callable[[AttemptOver], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._nodes = nodes
        self._instance_id = instance_id
        self._lease = lease
        self._on_over = on_over
        self._waiting: dict[asyncio.Task[None], NodeCall] = {}
        self._by_job: dict[str, NodeCall] = {}
        self._has_ready = True
        self._stopped = False
        self._is_closed = False
        nodes.subscribe(self._hear)
        self.pump = Pump("node-runs", clock, self._step, poll_us=5 * SECOND)

    @property
    def are_jobs_kept(self) -> bool:
        """Whether node jobs outlive who submitted them."""
        return self._nodes.is_durable

    def ready(self) -> None:
        """A run is about to start."""
        self._has_ready = True
        self.pump.signal()

    def abort(self, run_id: int) -> None:
        """Stop waiting for a run's job; its result will find the token void."""
        for call in self._waiting.values():
            if call.run.run_id == run_id:
                call.abort()

    def known_runs(self) -> set[int]:
        """The runs that are waited for here."""
        return {call.run.run_id for call in self._waiting.values()}

    async def drain(self) -> None:
        """Take nothing more; wait for the jobs that are waited for."""
        self._stopped = True
        while self._waiting:
            await self._clock.sleep_until(self._clock.now() + 50 * MILLISECOND)

    def close(self) -> None:
        """Stop waiting, and say nothing: the rescue of orphans has the runs."""
        self._stopped = self._is_closed = True
        for task in self._waiting:
            task.cancel()

    async def _step(self) -> Instant | None:
        if self._waiting:
            await self._drop_void()
        if not self._has_ready:  # the poll: a hint may have been lost
            self._has_ready = await self._store.read(_is_ready)
        room = min(MAX_CLAIM, MOST - len(self._waiting))
        if self._has_ready and not self._stopped and room > 0 and self._lease.is_held():
            lease = self._lease.generation
            claimed, _ = await self._store.transact(
                claim_ready, NODE_PLACE, self._instance_id, new_tokens(room), 0, lease
            )
            self._has_ready = len(claimed) == room
            for run in claimed:
                self._begin(run)
            if self._has_ready and len(self._waiting) < MOST:
                return AGAIN
        return self._clock.now() + CANCELS_EVERY if self._waiting else None

    async def _drop_void(self) -> None:
        """Stop waiting for runs that were cancelled elsewhere, or taken over."""
        newest = {call.run.run_id: call for call in self._waiting.values()}
        for call in self._waiting.values():
            if newest[call.run.run_id] is not call:
                call.abort()  # the run was taken from us, and we took it up again
        before = self._clock.now() - CANCELS_EVERY // 2
        claims = [
            (run_id, call.run.token)
            for run_id, call in newest.items()
            if call.started_at < before and not call.is_aborted
        ]
        if claims:
            for run_id in await self._store.read(_list_void, claims):
                newest[run_id].abort()

    def _begin(self, run: ClaimedRun) -> None:
        call = NodeCall(run, self._clock.now())
        task = asyncio.get_running_loop().create_task(self._carry(call), name="node run")
        self._waiting[task] = call
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            task.result()  # a bug of ours must be seen: it goes to the event loop's handler
        if self._has_ready:
            self.pump.signal()

    async def _carry(self, call: NodeCall) -> None:
        """From the claim of a run to the end of its attempt."""
        run = call.run
        if not self._lease.covers(run.lease):
            # Another instance may be taking over: nothing was submitted, so this was no attempt.
            reply = Reply("aborted", Timing(), error=NOT_OURS, sends=0)
            self._tell(AttemptOver(run, None, None, reply, call.started_at, self._clock.now()))
            return
        try:
            order = build_node_order(run, self._clock.now())
        except ValueError as error:
            self._end(call, None, HandedEnd("gave_up", str(error)))
            return
        self._by_job[order.job_id] = call
        try:
            end = await self._submit(order) or await self._wait(call, order)
        finally:
            if self._by_job.get(order.job_id) is call:  # else we took the run up again
                del self._by_job[order.job_id]
        self._end(call, order, end)

    async def _submit(self, order: NodeOrder) -> HandedEnd | None:
        """Submit a job; answer why it ended before it began, if it did."""
        try:
            await self._nodes.submit(order)
        except KsanaError as error:
            return HandedEnd("failed", f"{error.code}: {error.message}")
        return None

    async def _wait(self, call: NodeCall, order: NodeOrder) -> HandedEnd:
        """Wait for the end of a job; cancel it when the run's time is over, or nobody wants it."""
        until = call.started_at + call.run.task.definition.timeout_us
        while True:
            now = self._clock.now()
            if call.end is not None:
                return call.end
            if call.is_aborted:
                await self._cancel(call, order, "was cancelled")
                return HandedEnd("canceled", "the run was cancelled")
            if now >= until:
                await self._cancel(call, order, "timed out")
                return HandedEnd("timeout", OVERDUE)
            rest_us = HERE_EVERY if self._nodes.is_here(order.job_id) else ELSEWHERE_EVERY
            await self._clock.wait(call.changed, min(until, now + rest_us))
            call.changed.clear()
            if call.end is None and not self._nodes.is_here(order.job_id):
                call.end = await self._find_end(order.job_id)

    async def _cancel(self, call: NodeCall, order: NodeOrder, why: str) -> None:
        """Cancel a job that nobody waits for any more. While our lease covers the run, no other
        instance can have taken it up."""
        run = call.run
        if self._lease.covers(run.lease) or not await self._is_taken_up(run):
            await self._nodes.cancel(order.job_id, f"run {run.run_id} {why}")

    async def _is_taken_up(self, run: ClaimedRun) -> bool:
        try:
            return await self._store.read(_is_taken_up, run)
        except StoreDownError:
            return True  # nobody knows: the job ends by its own time

    async def _find_end(self, job_id: str) -> HandedEnd | None:
        try:
            job = await self._nodes.find_job(job_id)
        except UnavailableError:
            return None  # nobody knows: it is asked again, until the run's time is over
        return HandedEnd("lost", GONE) if job is None else job.end

    def _hear(self, job_id: str, end: HandedEnd) -> None:
        call = self._by_job.get(job_id)
        if call is not None:
            call.end = end
            call.changed.set()

    def _end(self, call: NodeCall, order: NodeOrder | None, end: HandedEnd) -> None:
        ended_at = max(call.started_at, self._clock.now())
        run = call.run
        job = HandedJob(
            job_id=job_id_of(run.uid, run.attempt),
            request_id=request_id_of(run.uid, run.attempt),
            state=end.kind,
            payload="" if order is None else order.payload_json,
            created_at=call.started_at,
            ended_at=ended_at,
            end=end,
            has_begun=True,
        )
        reply = reply_of(end, call.started_at, ended_at)
        self._tell(AttemptOver(run, None, None, reply, call.started_at, ended_at, job))

    def _tell(self, over: AttemptOver) -> None:
        if not self._is_closed:
            self._on_over(over)


def _is_ready(tx: TasksTx) -> bool:
    return NODE_PLACE in tx.run_due.list_ready_hosts()


def _is_taken_up(tx: TasksTx, held: ClaimedRun) -> bool:
    run = tx.runs.find(held.run_id)
    return run is not None and is_taken_up(run, held)


def _list_void(tx: TasksTx, claims: list[tuple[int, int]]) -> list[int]:
    return tx.run_due.list_void(claims)
