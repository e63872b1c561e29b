"""A queue on the virtual clock and a real store, as its service is used: submit, claim, lease. The
sweep does not run unless a test starts it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import KsanaError, StoreDownError
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of, needs_of
from ksana.domain.queue.jobs import Job, Lease, LeasedJob, NewJob
from ksana.service.queue.claims import Claim, Claimed
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store
from tests.ground.receivers import AwaitedStore

TOTAL = 100


class QueueWorld:
    """One instance of the queue."""

    def __init__(self, store: SqlStore, clock: VirtualClock, limits: Limits) -> None:
        self.store = store
        self.clock = clock
        self.queue = QueueService(store, clock, limits)

    def new_job(self, addon: str = "a", kind: str = "t", cost: int = 10, **members: Any) -> NewJob:
        constraints = members.pop("constraints", {})
        given: dict[str, Any] = {
            "job_id": self.queue.new_id(),
            "priority": "NORMAL",
            "job_class": class_of(addon, kind, cost, needs_of(constraints)),
            "constraints_json": msgspec.json.encode(constraints).decode(),
            "payload_json": "{}",
            "client_request_id": None,
            "max_attempts": 1,
            "run_at": None,
            "fairness_key": None,
        }
        return NewJob(**given | members)

    async def submit(self, addon: str = "a", kind: str = "t", cost: int = 10, **more: Any) -> Job:
        return await self.queue.submit(self.new_job(addon, kind, cost, **more))

    async def claim(self, worker: str = "w", limit: int = 1, **more: Any) -> Claimed:
        wants = more.pop("wants", Wants())
        return await self.queue.claim(Claim(worker, wants, limit, **more))

    async def claimed(self, worker: str = "w", **members: Any) -> Job:
        """A new job, claimed; there must be no other before it."""
        await self.submit(**members)
        [job] = (await self.claim(worker)).jobs
        return job

    async def running(self, worker: str = "w", ttl_sec: float = 30, **members: Any) -> LeasedJob:
        """A new job that runs; there must be no other before it."""
        await self.submit(**members)
        taken = await self.claim(worker, has_lease=True, ttl_sec=ttl_sec)
        [job], [lease] = taken.jobs, taken.leases
        return LeasedJob(lease, job)

    async def job(self, job_id: str) -> Job:
        return await self.queue.get_job(job_id)

    async def lease(self, lease_id: str) -> Lease:
        return await self.queue.get_lease(lease_id)

    async def events(self, job_id: str) -> list[tuple[str, dict[str, Any]]]:
        """The events of a job and of its leases, in order."""
        found = await self.queue.list_events(job_id)
        return [(event.type, msgspec.json.decode(event.data)) for event in found]

    async def event_types(self, job_id: str) -> list[str]:
        return [name for name, _ in await self.events(job_id)]

    async def used(self) -> int:
        """Units in use."""
        capacity = await self.store.read(lambda tx: tx.capacity.read(TOTAL))
        return int(capacity.used)

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """The sweep at work."""
        sweep = asyncio.create_task(self.queue.leasing.pump.run())
        await self.clock.settle()
        yield
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)


def hold_commits(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No transaction begins until this is set."""
    go_on = asyncio.Event()
    patch_transact(store, monkeypatch, go_on.wait)
    return go_on


def patch_transact(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, before: Callable[[], Awaitable[object]]
) -> None:
    """Await something before each transaction."""
    held = Held(store.transact, before)
    monkeypatch.setattr(store, "transact", held.transact)
    monkeypatch.setattr(store, "transact_for", held.transact_for)


@contextmanager
def store_away(store: SqlStore) -> Iterator[None]:
    """Every transaction fails meanwhile."""

    async def fail() -> None:
        raise StoreDownError("the store is away")

    with pytest.MonkeyPatch.context() as patched:
        patch_transact(store, patched, fail)
        yield


class Held(AwaitedStore):
    """Transactions of a store before which something is awaited."""

    def __init__(self, whole: Any, before: Callable[[], Awaitable[object]]) -> None:
        self._whole = whole
        self._before = before

    async def transact(self, *args: Any) -> Any:
        await self._before()
        return await self._whole(*args)


def by(worker: str | None = None, token: int | None = None) -> Proof:
    """What a worker shows of itself."""
    return Proof(token=token, worker_id=worker)


@asynccontextmanager
async def open_queue_world(
    tmp_path: Path, clock: VirtualClock, limits: Limits | None = None
) -> AsyncIterator[QueueWorld]:
    store = await open_store(f"sqlite:///{tmp_path}/queue.db", clock, inline=True)
    yield QueueWorld(store, clock, limits or Limits(TOTAL))
    await store.close()


def told(error: object) -> tuple[str, str, Any]:
    """The code, the words and the state that a refusal tells."""
    assert isinstance(error, KsanaError)
    return error.code, error.message, error.extra.get("current")


def proof_of(taken: LeasedJob) -> Proof:
    """What the holder of a lease shows."""
    return by(token=taken.lease.lease_token)


def release(taken: LeasedJob, status: str = "SUCCEEDED", **members: Any) -> Release:
    """The holder's last word."""
    return Release(taken.lease.lease_id, status, **{"proof": proof_of(taken)} | members)


async def stored(queue: QueueWorld, taken: LeasedJob) -> LeasedJob:
    """A lease and its job as they stand in the store."""
    return LeasedJob(await queue.lease(taken.lease.lease_id), await queue.job(taken.job.job_id))
