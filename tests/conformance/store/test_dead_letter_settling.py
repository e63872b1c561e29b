"""Dead letters are settled once, by who comes first, and kept until then, on every SQL store."""

import asyncio
from typing import Any

import pytest

from ksana.base.errors import KsanaError, NotFoundError
from ksana.base.instant import HOUR
from ksana.domain.dead_letters import LetterFilter, group_key
from ksana.ports.queue.tables import JobFilter
from ksana.ports.retention import START, OldRows, WalkPlace
from ksana.service.core.dead_letters import SettledLetter
from ksana.service.tasks.runs import RunService
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.conformance.store.test_dead_letters import EVERYTHING, list_all
from tests.ground.dead_letters import ME, Failing
from tests.ground.governance import ME as GOVERNOR


@pytest.fixture
def failing(store: SqlStore) -> Failing:
    return Failing(store)


@pytest.mark.spec("B12", "C6")
async def test_a_run_is_replayed_as_a_new_run(failing: Failing) -> None:
    task_id = await failing.add_task()
    run_id = await failing.fail_run(task_id)
    [letter] = await list_all(failing)
    [settled] = await failing.letters.settle_some(["tasks"], [letter.id], ME, replays=True)
    again = await failing.store.read(lambda tx: tx.runs.find(int(settled.replayed_as or 0)))
    assert (again.task_id, again.trigger, again.retry_of) == (task_id, "retry", run_id)
    assert failing.hints.hosts == [again.ready_host]
    assert (await failing.events("RUN", run_id))[-1] == "RUN_REPLAYED"
    assert await list_all(failing) == []


@pytest.mark.spec("B12")
async def test_a_job_is_replayed_as_a_new_job_and_keeps_its_end(failing: Failing) -> None:
    job_id = await failing.fail_job("addon")
    [letter] = await list_all(failing)
    [settled] = await failing.letters.settle_some(["queue"], [letter.id], ME, replays=True)
    old, new = [await failing.queue.get_job(one) for one in (job_id, settled.replayed_as or "")]
    assert (old.state, new.state, new.attempts) == ("FAILED", "QUEUED", 0)
    for member in ("addon_id", "job_type", "payload_json", "cost_units", "max_attempts"):
        assert getattr(new, member) == getattr(old, member)
    assert (await failing.events("JOB", job_id))[-1] == "JOB_REPLAYED"
    assert "JOB_REPLAYS" in await failing.events("JOB", new.job_id)
    assert await list_all(failing) == []


@pytest.mark.spec("B12", "G6")
async def test_a_governance_job_is_queued_again_and_may_die_again(failing: Failing) -> None:
    job_id = await failing.fail_governance_job("m1", "first")
    [letter] = await list_all(failing)
    [settled] = await failing.letters.settle_some(["governance"], [letter.id], ME, replays=True)
    assert settled.replayed_as == job_id
    assert (await failing.governing.job(job_id)).status == "queued"
    assert await list_all(failing) == []
    [job] = await failing.governing.pull()
    await failing.governing.fail(job, "second")
    [letter] = await list_all(failing)
    assert (letter.entity_id, letter.error) == (job_id, "second")
    await failing.governing.service.requeue(job_id, GOVERNOR)
    assert await list_all(failing) == []


@pytest.mark.spec("B12", "C6")
async def test_a_run_that_is_retried_by_hand_is_no_dead_letter_any_more(failing: Failing) -> None:
    task_id = await failing.add_task()
    run_id = await failing.fail_run(task_id)
    runs = RunService(failing.store, failing.hints)  # type: ignore[arg-type]
    await runs.retry(run_id)
    assert await list_all(failing) == []
    assert (await failing.events("RUN", run_id))[-1] == "RUN_REPLAYED"


@pytest.mark.spec("B12", "X4")
async def test_a_letter_is_replayed_once_whoever_else_tries(failing: Failing) -> None:
    task_id = await failing.add_task()
    for _ in range(6):
        await failing.fail_run(task_id)
    await failing.fail_job()
    await failing.fail_governance_job()
    ids = [letter.id for letter in await list_all(failing)]
    calls = [failing.letters.settle_some(failing.surfaces, ids, ME, replays=True) for _ in range(4)]
    answers = await asyncio.gather(*calls)
    for letter_id in ids:
        outcomes = [one for answer in answers for one in answer if one.letter_id == letter_id]
        assert sum(one.error is None for one in outcomes) == 1
        assert sum(isinstance(one.error, NotFoundError) for one in outcomes) == 3
    runs = await failing.store.read(lambda tx: tx.runs.list_runs(task_id=task_id, limit=100))
    assert len(runs) == 12
    jobs = (await failing.queue.list_jobs(JobFilter(), None, 100)).jobs
    assert sorted(job.state for job in jobs) == ["FAILED", "QUEUED"]


@pytest.mark.spec("B12")
async def test_all_that_match_are_replayed_page_by_page_and_a_refused_one_stays(
    failing: Failing,
) -> None:
    task_id, gone = await failing.add_task("t"), await failing.add_task("gone")
    for number in range(5):
        await failing.fail_run(task_id, f"answered {number}")
        await failing.fail_run(gone, f"answered {number}")
    await failing.fail_run(task_id, "another error")
    await failing.store.transact(
        lambda tx: tx.tasks.delete_if_living(task := tx.tasks.find(gone), task.definition)
    )
    wanted = LetterFilter(error_key=group_key("answered 9"))
    done: list[SettledLetter] = []
    place = None
    while True:
        page = await failing.letters.settle_matching(
            failing.surfaces, wanted, place, 3, ME, replays=True
        )
        done += page.settled
        place = page.next_place
        if place is None:
            break
    assert len(done) == 10
    refused = [one for one in done if one.error is not None]
    assert {one.letter.source for one in refused if one.letter} == {str(gone)}
    assert all(isinstance(one.error, KsanaError) for one in refused)
    left = await list_all(failing)
    assert sorted(letter.error for letter in left if letter.source == str(task_id)) == [
        "another error"
    ]
    assert len(left) == 6


@pytest.mark.spec("B12")
async def test_a_dismissed_letter_is_settled_without_a_run(failing: Failing) -> None:
    task_id = await failing.add_task()
    run_id = await failing.fail_run(task_id)
    job_id = await failing.fail_governance_job()
    ids = [letter.id for letter in await list_all(failing)]
    settled = await failing.letters.settle_some(failing.surfaces, ids, ME, replays=False)
    assert [(one.error, one.replayed_as) for one in settled] == [(None, None)] * 2
    assert await list_all(failing) == []
    assert (await failing.events("RUN", run_id))[-1] == "RUN_DISMISSED"
    assert (await failing.events("GOV_JOB", job_id))[-1] == "GOV_JOB_DISMISSED"
    runs = await failing.store.read(lambda tx: tx.runs.list_runs(task_id=task_id))
    assert [run.id for run in runs] == [run_id]


@pytest.mark.spec("B12", "X19")
async def test_letters_of_other_surfaces_are_not_there(failing: Failing) -> None:
    task_id = await failing.add_task()
    await failing.fail_run(task_id)
    [letter] = await list_all(failing)
    [settled] = await failing.letters.settle_some(["queue"], [letter.id], ME, replays=True)
    assert isinstance(settled.error, NotFoundError)
    assert await failing.letters.find_letters(["queue"], [letter.id]) == []
    assert await list_all(failing) == [letter]


def find_old(tx: Any, surface: str, limit: int = 100, after: WalkPlace = START) -> OldRows:
    find = {
        "tasks": lambda: tx.history.find_old_runs,
        "queue": lambda: tx.jobs.find_old,
        "governance": lambda: tx.governance.find_old,
    }[surface]()
    found: OldRows = find(tx.now + HOUR, after, limit)
    return found


def remove(tx: Any, surface: str, keys: list[int]) -> int:
    found = {
        "tasks": lambda: tx.history.remove_runs(keys),
        "queue": lambda: tx.jobs.remove(keys),
        "governance": lambda: tx.governance.remove(keys),
    }
    return int(found[surface]())


@pytest.mark.spec("X13", "B12")
@pytest.mark.parametrize("surface", ["tasks", "queue", "governance"])
async def test_retention_keeps_a_dead_letter_until_it_is_settled(
    failing: Failing, database: Database, surface: str
) -> None:
    task_id = await failing.add_task()
    await failing.fail_run(task_id)
    await failing.fail_job()
    await failing.fail_governance_job()
    table, key = {
        "tasks": ("task_runs", "id"),
        "queue": ("scheduler_job_runs", "seq"),
        "governance": ("governance_jobs", "seq"),
    }[surface]
    [(number,)] = database.ask(f"SELECT {key} FROM {table}")
    assert (await failing.store.read(find_old, surface)).keys == []
    assert await failing.store.transact(remove, surface, [number]) == 0
    leases = "SELECT COUNT(*) FROM scheduler_lease_runs"
    assert database.ask(leases) == [(1,)]
    [letter] = await list_all(failing, EVERYTHING, surface)
    await failing.letters.settle_some([surface], [letter.id], ME, replays=False)
    assert (await failing.store.read(find_old, surface)).keys == [number]
    assert await failing.store.transact(remove, surface, [number]) == 1
    assert database.ask(f"SELECT COUNT(*) FROM {table}") == [(0,)]
    assert database.ask(leases) == [(0,) if surface == "queue" else (1,)]


@pytest.mark.spec("X13")
@pytest.mark.parametrize("surface", ["tasks", "queue", "governance"])
async def test_a_pile_of_dead_letters_is_passed_over_and_not_looked_at_again(
    failing: Failing, surface: str
) -> None:
    task_id = await failing.add_task()
    for _ in range(7):
        await failing.fail_run(task_id)
        await failing.fail_job()
        await failing.fail_governance_job()
    newest = await failing.letters.list_letters([surface], EVERYTHING, None, 1)
    [letter] = newest.letters
    await failing.letters.settle_some([surface], [letter.id], ME, replays=False)
    found = await failing.store.read(find_old, surface, 2)
    assert len(found.keys) == 1
    assert await failing.store.transact(remove, surface, found.keys) == 1
    rest = await failing.store.read(find_old, surface, 2, found.after)
    assert (rest.keys, rest.is_end) == ([], True)
