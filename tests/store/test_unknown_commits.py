"""The connection breaks while a COMMIT is on its way: the store finds out what happened and never
guesses."""

import asyncio
import re
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError, StoreDownError
from ksana.ports.queue.tables import JobFilter
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.checks import enter_key, event_types, key_names
from tests.conformance.store.test_submit_sets import jobs_with, service_of
from tests.ground.proxy import FaultProxy

_COMMIT = re.compile(rb"\bCOMMIT\b")


def is_commit(seen: bytes) -> bool:
    """Whether a COMMIT passes; neither AUTOCOMMIT nor READ COMMITTED is one."""
    return _COMMIT.search(seen) is not None


class Counted:
    """A transaction function that knows how often it ran."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = 0

    def __call__(self, tx: Any) -> str:
        self.runs += 1
        tx.rollups.add("counted", self.name)
        return enter_key(tx, self.name)


async def check_it_happened_once(store: SqlStore, name: str) -> None:
    assert await store.read(key_names) == {name}
    assert await store.read(event_types) == [f"KEY_CREATED:{name}"]
    buckets = await store.read(lambda tx: tx.rollups.list_buckets("counted", name, 0, 2**53))
    assert sum(n for _, n, _ in buckets) == 1


async def check_a_lost_reply_is_resolved(store: SqlStore, proxy: FaultProxy) -> None:
    """The server commits, the answer is lost: committed once, run once, answered."""
    work = Counted("once")
    lost = proxy.lose_reply_to(is_commit)
    assert await store.transact(work) == "once"
    assert lost.count == 1, "the answer to the COMMIT was not lost: this proves nothing"
    assert work.runs == 1
    await check_it_happened_once(store, "once")


@pytest.mark.fault("F39")
async def test_a_commit_whose_answer_was_lost_is_not_run_again(
    faulty_store: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())
    await check_a_lost_reply_is_resolved(store, proxy)
    await store.close()


async def test_a_commit_that_never_arrived_is_run_again(
    faulty_store: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())
    work = Counted("twice-run")
    lost = proxy.cut_before(is_commit)
    assert await store.transact(work) == "twice-run"
    assert (lost.count, work.runs) == (1, 2)
    await check_it_happened_once(store, "twice-run")
    await store.close()


@pytest.mark.fault("F39")
@pytest.mark.spec("Q1")
async def test_a_submit_that_travels_with_its_commit_is_entered_once(
    faulty_store: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())
    service = service_of(store)
    made = [await service.submit(job) for job in jobs_with(["before"])]
    for number, break_at in enumerate((proxy.lose_reply_to, proxy.cut_before)):
        retries = store.health().retries
        broken = break_at(is_commit)
        made += [await service.submit(job) for job in jobs_with([f"broken {number}"])]
        assert (broken.count, store.health().retries - retries) == (1, number)
        with pytest.raises(ConflictError) as refused:
            await service.submit(jobs_with([f"broken {number}"])[0])
        assert refused.value.extra["job"].job_id == made[-1].job_id
    page = await store.read(lambda tx: tx.job_lists.list_page(JobFilter(), None, 10))
    assert [job.job_id for job in page] == [job.job_id for job in reversed(made)]
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert (gauges.queued, gauges.arrivals) == (3, 3)
    assert len(await store.read(event_types)) == 3
    await store.close()


@pytest.mark.fault("F39")
async def test_many_lost_answers_under_load_lose_and_double_nothing(
    faulty_store: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())
    names = [f"k{n}" for n in range(60)]

    async def write(some: list[str]) -> list[str]:
        return [await store.transact(Counted(name)) for name in some]

    lost = proxy.lose_reply_to(is_commit, times=3)
    cut = proxy.cut_before(is_commit, times=3)
    answers = await asyncio.gather(*(write(names[n::6]) for n in range(6)))
    assert sorted(name for some in answers for name in some) == sorted(names)
    assert lost.count + cut.count >= 2, (
        "too few connections broke while committing: this proves nothing"
    )
    assert await store.read(key_names) == set(names)
    events = await store.read(event_types)
    assert sorted(events) == sorted(f"KEY_CREATED:{name}" for name in names)
    await store.close()


async def test_a_store_that_is_away_while_the_outcome_is_open_is_waited_for(
    faulty_store: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())
    work = Counted("patient")

    def write_and_refuse(tx: Any) -> str:
        answer = work(tx)
        proxy.refuse()  # from now on nobody can connect to ask
        return answer

    lost = proxy.lose_reply_to(is_commit)
    task = asyncio.ensure_future(store.transact(write_and_refuse))
    await asyncio.to_thread(lost.wait)
    while store.health().ok:
        await asyncio.sleep(0.01)
    assert not task.done()
    proxy.heal()
    assert await task == "patient"
    assert work.runs == 1
    await check_it_happened_once(store, "patient")
    assert (await store.transact(lambda tx: tx.locks.take("l", "me", 1))) is True
    assert store.health().ok
    await store.close()


async def test_an_outcome_that_stays_open_is_told_as_such(
    faulty_store: tuple[str, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ksana.store.sql.core.commit_queue.RESOLVE_SECONDS", 0.3)
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())

    def write_and_refuse(tx: Any) -> str:
        answer = enter_key(tx, "perhaps")
        proxy.refuse()
        return answer

    proxy.lose_reply_to(is_commit)
    with pytest.raises(StoreDownError, match="not known yet"):
        await store.transact(write_and_refuse)
    proxy.heal()
    assert await store.read(key_names) == {"perhaps"}
    await store.close()
