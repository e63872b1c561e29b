"""The machine that works a queue beside a model of it."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, KsanaError
from ksana.base.instant import SECOND
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import LeasedJob, NewJob
from ksana.engine.queue.leasing import recount, sweep
from ksana.service.queue.claims import Claim
from ksana.service.queue.jobs import Report
from ksana.service.queue.leases import Heartbeat
from ksana.service.queue.releases import Released
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store

TOTAL = 20


PRIORITIES = ("URGENT", "HIGH", "NORMAL", "LOW")


class Twin:
    """What the model knows of one job."""

    def __init__(self, number: int, cost: int, priority: str, max_attempts: int) -> None:
        self.number = number
        self.cost = cost
        self.priority = priority
        self.max_attempts = max_attempts
        self.state = "QUEUED"
        self.attempts = 0
        self.worker: str | None = None
        self.until = 0
        self.due_at = 0
        self.lease: str | None = None
        self.cancel = False


class QueueMachine(RuleBasedStateMachine):
    """Calls on one side, the model on the other."""

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = VirtualClock()
        self.twins: dict[str, Twin] = {}
        self.old_leases: list[str] = []
        self._open()

    def _open(self) -> None:
        url = f"sqlite:///{Path(self.folder.name) / 'ksana.db'}"
        self.store: SqlStore = self.wait(open_store(url, self.clock, inline=True))
        self.queue = QueueService(self.store, self.clock, Limits(TOTAL))

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.wait(self.store.close())
            self.loop.close()
            self.folder.cleanup()

    @property
    def now(self) -> int:
        return self.clock.now()

    def settle(self) -> None:
        """What time alone has done, in the model."""
        for twin in self.twins.values():
            if twin.state == "RUNNING" and twin.until <= self.now:
                self.old_leases.append(twin.lease or "")
                twin.lease = None
                if twin.cancel:
                    twin.state = "CANCELED"
                elif twin.attempts < twin.max_attempts:
                    twin.state, twin.worker, twin.due_at = "QUEUED", None, self.now
                else:
                    twin.state = "TIMEOUT"
            elif twin.state in ("CLAIMED", "PREPARING", "LEASE_PENDING") and twin.until <= self.now:
                twin.state, twin.worker = "QUEUED", None

    def sweep(self) -> None:
        self.wait(self.store.transact(sweep, 100))
        self.settle()

    def some(self, state: str, pick: int) -> tuple[str, Twin] | None:
        found = [(job_id, twin) for job_id, twin in self.twins.items() if twin.state == state]
        return found[pick % len(found)] if found else None

    @rule(
        cost=st.integers(1, TOTAL),
        priority=st.sampled_from(PRIORITIES),
        attempts=st.integers(1, 3),
        later=st.integers(0, 3),
    )
    def submit(self, cost: int, priority: str, attempts: int, later: int) -> None:
        (job_id,) = self.queue.new_ids(1)
        run_at = self.now + later * 10 * SECOND if later else None
        job = NewJob(
            job_id,
            priority,
            class_of("a", f"t{cost % 3}", cost, ()),
            "{}",
            "{}",
            None,
            attempts,
            run_at,
            None,
        )
        self.wait(self.queue.submit(job))
        twin = Twin(len(self.twins), cost, priority, attempts)
        twin.due_at = run_at or self.now
        self.twins[job_id] = twin

    # Single calls alone seldom get far enough for leases to run out or capacity to run short, so
    # some rules take two steps.

    @rule(cost=st.integers(1, 8), priority=st.sampled_from(PRIORITIES), attempts=st.integers(1, 2))
    def submit_and_start(self, cost: int, priority: str, attempts: int) -> None:
        self.submit(cost, priority, attempts, 0)
        self.claim_with_leases(4)

    @rule(cost=st.integers(5, TOTAL), priority=st.sampled_from(PRIORITIES))
    def submit_and_hold(self, cost: int, priority: str) -> None:
        self.submit(cost, priority, 1, 0)
        self.claim("w1", None)

    @rule(pick=st.integers(0, 99), is_cancelled=st.booleans())
    def run_out(self, pick: int, is_cancelled: bool) -> None:
        found = self.some("RUNNING", pick)
        if found is None:
            return
        if is_cancelled:
            self.wait(self.queue.cancel(found[0], None))
            found[1].cancel = True
        self.clock.step(found[1].until - self.now)

    @rule(worker=st.sampled_from(["w1", "w2"]), kind=st.sampled_from([None, "t0", "t1"]))
    def claim(self, worker: str, kind: str | None) -> None:
        self.sweep()
        wants = Wants(job_types=frozenset([kind] if kind else []))
        claimed = self.wait(self.queue.claim(Claim(worker, wants)))
        ready = [
            (PRIORITIES.index(twin.priority), job_id)
            for job_id, twin in self.twins.items()
            if twin.state == "QUEUED"
            and twin.due_at <= self.now
            and kind in (None, f"t{twin.cost % 3}")
        ]
        assert bool(claimed.jobs) == bool(ready)
        if ready:
            job = claimed.jobs[0]
            twin = self.twins[job.job_id]
            assert twin.state == "QUEUED"
            assert PRIORITIES.index(twin.priority) == min(ready)[0]
            twin.state, twin.worker, twin.until = "CLAIMED", worker, self.now + 60 * SECOND

    @rule(limit=st.integers(1, 4))
    def claim_with_leases(self, limit: int) -> None:
        self.sweep()
        claimed = self.wait(self.queue.claim(Claim("w3", Wants(), limit, True, 20)))
        assert len(claimed.jobs) == len(claimed.leases) <= limit
        for job, lease in zip(claimed.jobs, claimed.leases, strict=True):
            twin = self.twins[job.job_id]
            assert twin.state == "QUEUED" and twin.due_at <= self.now
            self.start(twin, lease, "w3")

    def start(self, twin: Twin, lease: Any, worker: str | None) -> None:
        twin.state, twin.lease, twin.worker, twin.until = (
            "RUNNING",
            lease.lease_id,
            worker,
            lease.expires_at,
        )
        twin.attempts += 1

    @rule(pick=st.integers(0, 99), state=st.sampled_from(["CLAIMED", "PREPARING", "LEASE_PENDING"]))
    def ask_for_lease(self, pick: int, state: str) -> None:
        self.settle_live()
        found = self.some(state, pick)
        if found is None:
            return
        job_id, twin = found
        answer = self.wait(self.queue.request_lease(job_id, 20, Proof(worker_id=twin.worker)))
        used = sum(one.cost for one in self.twins.values() if one.state == "RUNNING")
        if isinstance(answer, LeasedJob):
            assert used + twin.cost <= TOTAL
            self.start(twin, answer.lease, twin.worker)
        else:
            assert answer.denial.code == "CAPACITY_RESERVED" or used + twin.cost > TOTAL
            twin.state, twin.until = "LEASE_PENDING", answer.job.claim_expires_at

    def settle_live(self) -> None:
        self.sweep()

    @rule(pick=st.integers(0, 99))
    def prepare(self, pick: int) -> None:
        self.sweep()
        found = self.some("CLAIMED", pick)
        if found is not None:
            job = self.wait(
                self.queue.report(
                    Report(found[0], "PREPARING", 0.5, None, Proof(worker_id=found[1].worker))
                )
            )
            found[1].state, found[1].until = "PREPARING", job.claim_expires_at

    @rule(pick=st.integers(0, 99), is_late=st.booleans())
    def beat(self, pick: int, is_late: bool) -> None:
        found = self.some("RUNNING", pick)
        if found is None:
            return
        twin = found[1]
        if is_late:  # before any sweep has come
            self.clock.step(twin.until - self.now)
        beat = Heartbeat(twin.lease or "", proof=Proof(worker_id=twin.worker))
        if twin.until <= self.now:
            with pytest.raises(ConflictError, match="EXPIRED"):
                self.wait(self.queue.heartbeat(beat))
            return
        held = self.wait(self.queue.heartbeat(beat))
        assert bool(held.job.cancel_requested) == twin.cancel
        twin.until = held.lease.expires_at

    @rule(
        pick=st.integers(0, 99),
        status=st.sampled_from(["SUCCEEDED", "FAILED", "CANCELED", "TIMEOUT"]),
        ways=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def release(self, pick: int, status: str, ways: tuple[bool, bool, bool]) -> None:
        again, is_late, is_compact = ways
        found = self.some("RUNNING", pick)
        if found is None:
            return
        twin = found[1]
        item = Release(
            twin.lease or "", status, proof=Proof(worker_id=twin.worker), result_json="1"
        )
        if is_late:
            self.clock.step(twin.until - self.now)
        send = self.queue.release_batch_compactly if is_compact else self.queue.release_batch
        outcomes = [self.wait(send([item]))[0] for _ in range(2 if again else 1)]
        if is_late:
            assert all(isinstance(one, KsanaError) and one.code == "LEASE_LOST" for one in outcomes)
            self.sweep()
            return
        assert all(isinstance(one, Released if is_compact else LeasedJob) for one in outcomes)
        self.old_leases.append(twin.lease or "")
        twin.lease = None
        if twin.cancel or status == "CANCELED":
            twin.state = "CANCELED"
        elif status == "FAILED" and twin.attempts < twin.max_attempts:
            twin.state, twin.worker = "QUEUED", None
            twin.due_at = self.now + min(5 * 2 ** (twin.attempts - 1), 300) * SECOND
        else:
            twin.state = {"SUCCEEDED": "DONE", "FAILED": "FAILED", "TIMEOUT": "TIMEOUT"}[status]

    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        self.sweep()
        alive = [
            (job_id, t)
            for job_id, t in self.twins.items()
            if t.state not in ("DONE", "FAILED", "CANCELED", "TIMEOUT")
        ]
        if not alive:
            return
        job_id, twin = alive[pick % len(alive)]
        self.wait(self.queue.cancel(job_id, None))
        if twin.state == "RUNNING":
            twin.cancel = True
        else:
            twin.state = "CANCELED"

    @precondition(lambda self: self.old_leases)
    @rule(pick=st.integers(0, 99))
    def zombie(self, pick: int) -> None:
        lease_id = self.old_leases[pick % len(self.old_leases)]
        for outcome in (
            self.wait(self.queue.heartbeat_batch([Heartbeat(lease_id)]))[0],
            self.wait(
                self.queue.release_batch([Release(lease_id, "SUCCEEDED", result_json='"zombie"')])
            )[0],
        ):
            assert isinstance(outcome, KsanaError) and outcome.code == "LEASE_LOST"

    @rule(seconds=st.sampled_from([1, 6, 19, 21, 61]))
    def wait_a_while(self, seconds: int) -> None:
        self.clock.step(seconds * SECOND)

    @rule()
    def restart(self) -> None:
        self.wait(self.store.close())
        self._open()

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        self.sweep()
        used = queued = running = 0
        for job_id, twin in self.twins.items():
            job = self.wait(self.queue.get_job(job_id))
            assert (job.state, job.attempts) == (twin.state, twin.attempts), job_id
            assert job.result_json != '"zombie"'
            used += twin.cost * (twin.state == "RUNNING")
            running += twin.state == "RUNNING"
            queued += twin.state == "QUEUED"
        assert used <= TOTAL
        gauges, capacity = self.wait(
            self.store.read(lambda tx: (tx.gauges.read(), tx.capacity.read(TOTAL)))
        )
        assert (capacity.used, capacity.active, gauges.queued, gauges.running) == (
            used,
            running,
            queued,
            running,
        )
        assert self.wait(self.store.transact(recount, TOTAL)) == (0, 0)
