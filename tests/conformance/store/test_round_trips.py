"""How often a transaction waits for a database server: what needs no answer travels with the next
statement, the last of it with COMMIT."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError, KsanaError
from ksana.base.ids import new_ordered_uuids
from ksana.base.instant import HOUR
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.engine.queue.job_writer import write_held
from ksana.service.queue.claims import (
    Claim,
    Claimed,
    claim_jobs,
    claim_together,
)
from ksana.service.queue.class_cache import JobClassCache
from ksana.service.queue.jobs import submit_jobs
from ksana.service.queue.leases import Heartbeat, extend_leases
from ksana.service.queue.releases import release_compactly, release_leases, release_together
from ksana.store.sql import SqlStore
from tests.conformance.store.checks import enter_key, event_types, key_names

LIMITS = Limits(1_000)
CLASS = class_of("trips", "noop", 1, ())
CACHE = JobClassCache()
WAYS = {"submit": 2, "claim": 2, "heartbeat": 2, "release": 2, "whole release": 2}
"""How often each waits for the database at least."""


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of the classes of another store would make a claim look first."""
    monkeypatch.setattr(sys.modules[__name__], "CACHE", JobClassCache())


def new_jobs(count: int) -> list[NewJob]:
    ids = new_ordered_uuids(SystemClock().now(), count)
    return [
        NewJob(
            job_id=job_id,
            priority="NORMAL",
            job_class=CLASS,
            constraints_json="{}",
            payload_json="{}",
            client_request_id=None,
            max_attempts=1,
            run_at=None,
            fairness_key=None,
        )
        for job_id in ids
    ]


async def submit(store: SqlStore, count: int) -> None:
    """Jobs of a class that was entered a short while ago."""
    await store.transact(submit_jobs, new_jobs(count), [], True)


async def enter_class(store: SqlStore) -> None:
    await store.transact(lambda tx: tx.job_classes.enter([CLASS], tx.now + HOUR))


async def claim(store: SqlStore, count: int) -> Claimed:
    wanted = Claim("w", Wants("trips"), count, True, 30.0)
    return await store.transact(claim_jobs, wanted, CACHE, LIMITS)


async def claim_again(store: SqlStore, count: int) -> Claimed:
    await submit(store, count)
    return await claim(store, count)


async def release(store: SqlStore, claimed: Claimed) -> None:
    items = [Release(lease.lease_id, "SUCCEEDED") for lease in claimed.leases]
    answers = (await store.transact(release_compactly, items)).answers
    assert [answer.state for answer in answers if not isinstance(answer, Exception)] == [
        "DONE"
    ] * len(items)


async def trips_of(store: SqlStore, work: Callable[[], Awaitable[Any]]) -> tuple[int, Any]:
    before = store.health().round_trips
    result = await work()
    return store.health().round_trips - before, result


@pytest.mark.parametrize("count", [1, 100])
async def test_a_job_costs_few_round_trips_however_many_go_together(
    store: SqlStore, count: int
) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    trips: dict[str, list[int]] = {name: [] for name in WAYS}
    await enter_class(store)
    for _ in range(12):  # over all writers: each asks for the clock and for types now and then
        spent, _ = await trips_of(store, lambda: submit(store, count))
        trips["submit"].append(spent)
        spent, claimed = await trips_of(store, lambda: claim(store, count))
        trips["claim"].append(spent)
        assert len(claimed.taken) == count
        beats = [Heartbeat(lease.lease_id, progress=0.5) for lease in claimed.leases]
        spent, _ = await trips_of(store, lambda beats=beats: store.transact(extend_leases, beats))
        trips["heartbeat"].append(spent)
        spent, _ = await trips_of(store, lambda claimed=claimed: release(store, claimed))
        trips["release"].append(spent)
        again = await claim_again(store, count)
        items = [Release(lease.lease_id, "SUCCEEDED") for lease in again.leases]
        spent, _ = await trips_of(store, lambda items=items: store.transact(release_leases, items))
        trips["whole release"].append(spent)
    least = {name: min(spent) for name, spent in trips.items()}
    assert least == WAYS


async def test_a_claim_that_found_nothing_before_costs_as_few_round_trips(store: SqlStore) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    await enter_class(store)
    await submit(store, 1)
    await release(store, await claim(store, 1))
    trips = []
    for _ in range(12):
        assert not (await claim(store, 1)).taken
        await submit(store, 1)
        spent, claimed = await trips_of(store, lambda: claim(store, 1))
        trips.append(spent)
        await release(store, claimed)
    assert min(trips) == 2


async def test_a_claim_of_many_classes_costs_few_round_trips_too(store: SqlStore) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    cache, kinds = JobClassCache(), [class_of("trips", f"t{n}", 1, ()) for n in range(40)]
    jobs = [
        msgspec.structs.replace(job, job_class=kinds[n % 40]) for n, job in enumerate(new_jobs(120))
    ]
    await store.transact(submit_jobs, jobs, kinds, True)
    for count, most in ((12, 10), (30, 9)):  # under and above FEW_CLASSES
        types = frozenset(kind.job_type for kind in kinds[:count])
        wanted = Claim("w", Wants("trips", types), 20, True, 30.0)
        spent, claimed = await trips_of(
            store, lambda wanted=wanted: store.transact(claim_jobs, wanted, cache, LIMITS)
        )
        assert len(claimed.taken) == 20
        assert {job.job_type for job in claimed.taken} <= types
        assert spent <= most


async def test_claims_that_wait_together_share_their_round_trips_and_are_served_in_order(
    store: SqlStore,
) -> None:
    cache = JobClassCache()
    made = await store.transact(submit_jobs, new_jobs(7), [CLASS], True)
    claims = [Claim(f"w{n}", Wants("trips"), 2, True, 30.0) for n in range(5)]
    spent, claimed = await trips_of(
        store, lambda: store.transact(claim_together, claims, cache, LIMITS)
    )
    ids = [[job.job_id for job in one.jobs] for one in claimed]
    assert ids == [[job.job_id for job in made[at : at + 2]] for at in range(0, 10, 2)]
    assert [[lease.worker_id for lease in one.leases] for one in claimed] == [
        ["w0"] * 2,
        ["w1"] * 2,
        ["w2"] * 2,
        ["w3"],
        [],
    ]
    if store.dialect.is_network:
        assert spent <= 9  # the first claim of a process: clock, types and classes are asked for
    sets = [[Release(lease.lease_id, "SUCCEEDED") for lease in one.leases] for one in claimed]
    sets[4] = [sets[0][0], Release(new_ordered_uuids(1, 1)[0], "SUCCEEDED")]
    released = await store.transact(release_together, sets)
    states = [[getattr(answer, "state", "refused") for answer in one.answers] for one in released]
    assert states == [["DONE"] * 2, ["DONE"] * 2, ["DONE"] * 2, ["DONE"], ["DONE", "refused"]]
    assert sum(len(one.changes) for one in released) == 7


async def test_a_guard_that_was_held_to_be_sure_and_says_no_fails_its_own_function_only(
    store: SqlStore,
) -> None:
    await enter_class(store)

    async def start(count: int) -> list[JobChange]:
        await submit(store, count)
        return list((await claim(store, count)).changes)

    one, few = await start(1), await start(3)

    def finish(tx: Any, changes: list[JobChange]) -> None:
        ended = [
            msgspec.structs.replace(change, move="finish", old="RUNNING", new="DONE")
            for change in changes
        ]
        write_held(tx, ended)

    for started in (one, few):
        stale = [msgspec.structs.replace(started[0], lease_id="another"), *started[1:]]
        answers = await asyncio.gather(
            store.transact(enter_key, f"a{len(started)}"),
            store.transact(finish, stale),
            store.transact(enter_key, f"b{len(started)}"),
            return_exceptions=True,
        )
        assert isinstance(answers[1], Exception) and not isinstance(answers[1], KsanaError)
        assert [answers[0], answers[2]] == [f"a{len(started)}", f"b{len(started)}"]
        jobs = [change.job_id for change in started]
        found = await store.read(lambda tx, jobs=jobs: tx.jobs.find_jobs(jobs))
        assert {job.state for job in found.values()} == {"RUNNING"}
        await store.transact(finish, started)
        found = await store.read(lambda tx, jobs=jobs: tx.jobs.find_jobs(jobs))
        assert {job.state for job in found.values()} == {"DONE"}


async def test_a_statement_that_fails_with_the_commit_fails_its_own_function_only(
    store: SqlStore,
) -> None:
    def enter_badly(tx: Any, name: str) -> str:
        enter_key(tx, name)
        tx.events.append("KEY" * 40, name, "KEY_CREATED")  # longer than the column
        return name

    answers = await asyncio.gather(
        store.transact(enter_key, "one"),
        store.transact(enter_badly, "bad"),
        store.transact(enter_key, "two"),
        return_exceptions=True,
    )
    if not store.dialect.is_network:  # SQLite does not enforce lengths
        assert answers == ["one", "bad", "two"]
        return
    assert [answers[0], answers[2]] == ["one", "two"]
    assert isinstance(answers[1], Exception) and not isinstance(answers[1], ConflictError)
    assert await store.read(key_names) == {"one", "two"}
    assert await store.transact(enter_key, "later") == "later"


async def test_after_statements_that_failed_together_every_other_one_still_runs(
    store: SqlStore,
) -> None:
    def enter_badly(tx: Any, name: str) -> None:
        enter_key(tx, name)
        tx.rollups.add("trips", name)
        tx.events.append("KEY" * 40, name, "KEY_CREATED")  # longer than the column

    await enter_class(store)
    for number in range(24):  # a driver prepares a statement when it has come some times
        failed = [store.transact(enter_badly, f"bad{number}-{n}") for n in range(4)]
        await asyncio.gather(*failed, return_exceptions=True)
        assert await store.transact(enter_key, f"good{number}") == f"good{number}"
        await submit(store, 1)
        await release(store, await claim(store, 1))
    names = await store.read(key_names)
    assert {name for name in names if name.startswith("good")} == {f"good{n}" for n in range(24)}


async def test_what_travels_later_is_seen_by_what_comes_next(store: SqlStore) -> None:
    def enter_and_look(tx: Any) -> list[str]:
        enter_key(tx, "now")
        tx.events.append("KEY", "k", "KEY_CREATED")
        tx.flush()
        tx.events.append("KEY", "k", "KEY_REVOKED")
        return [event.type for event in tx.events.list_after(0, 10, "KEY", "k")]

    assert await store.transact(enter_and_look) == ["KEY_CREATED"]
    assert (await store.read(event_types))[-2:] == ["KEY_CREATED:k", "KEY_REVOKED:k"]
