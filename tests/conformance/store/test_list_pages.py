"""Pages of lists, on every SQL store: with any filters, walked from cursor to cursor they show what
a plain look at all rows shows, in order, each once; and totals are what they say they are."""

import asyncio
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from ksana.base.errors import InvalidError, StoreDownError
from ksana.base.ids import new_ordered_uuids
from ksana.base.instant import HOUR, SECOND
from ksana.domain.queue.classes import class_of
from ksana.domain.queue.jobs import Job, NewJob
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition, Run, Task
from ksana.ports.pages import MAX_DEPTH, PageRows, Place
from ksana.ports.queue.tables import JobFilter
from ksana.ports.tasks.runs import RunFilter
from ksana.ports.tasks.tables import TaskFilter
from ksana.service.queue.jobs import submit_jobs
from ksana.service.tasks import reading
from ksana.store.sql import SqlStore
from ksana.store.sql.core.session import Session
from ksana.store.sql.core.store import LIST_READERS, LIST_SECONDS
from ksana.store.sql.queue import job_lists
from ksana.store.sql.tasks import run_lists, task_lists
from tests.conformance.store.ground import Database
from tests.conformance.store.test_history import new_run
from tests.ground.task_rows import a_finish, a_task

LOOK = 7
"""Rows that a page looks through here, so that it ends early often."""

STATES = ("SUCCESS", "FAILED", "SCHEDULED", "SUCCESS", "SKIPPED")


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (run_lists, "LOOK_UP"),
        (task_lists, "LOOK_THROUGH"),
        (job_lists, "LOOK_UP"),
        (job_lists, "LOOK_THROUGH"),
    ):
        monkeypatch.setattr(module, name, LOOK)


def definition(name: str, **members: Any) -> Definition:
    return Definition(name, "", Every(HOUR, 0, False), **members)


async def walk(read: Callable[[Place | None], Any], most: int = 200) -> list[Any]:
    """All rows, page by page; a page may be short or empty and go on all the same."""
    rows: list[Any] = []
    place: Place | None = None
    for _ in range(most):
        page: PageRows[Any] = await read(place)
        rows += page
        if page.next_place is None:
            return rows
        place = page.next_place
    raise AssertionError("the pages do not end")


def fill_runs(tx: Any) -> list[int]:
    tasks = [a_task(f"j{n}", definition(f"t{n}"), tx.now, None) for n in range(2)]
    one, other = tx.tasks.insert(tasks)
    tx.run_changes.insert(
        [
            # Scheduled times neither in the order of ids nor all different.
            new_run(one if n % 3 else other, (n * 7 % 20) * SECOND, STATES[n % len(STATES)])
            for n in range(60)
        ]
    )
    return [one, other]


def matches(run: Run, wanted: RunFilter) -> bool:
    return (
        wanted.task_id in (None, run.task_id)
        and wanted.status in (None, run.status)
        and (wanted.since is None or run.scheduled_time >= wanted.since)
        and (wanted.until is None or run.scheduled_time < wanted.until)
    )


@pytest.mark.spec("C5", "X13")
@pytest.mark.usefixtures("short_looks")
async def test_runs_are_listed_whole_by_any_filters(store: SqlStore) -> None:
    task_ids = await store.transact(fill_runs)
    runs = await store.read(lambda tx: tx.runs.list_runs(limit=1000))
    assert len(runs) == 60
    for task_id, status, since, until in product(
        (None, task_ids[0]), (None, "FAILED", "RUNNING"), (None, 3 * SECOND), (None, 9 * SECOND)
    ):
        wanted = RunFilter(task_id=task_id, status=status, since=since, until=until)
        expected = [run for run in runs if matches(run, wanted)]
        if wanted.is_by_time:
            expected.sort(key=lambda run: (run.scheduled_time, run.id), reverse=True)

        def read(place: Place | None, wanted: RunFilter = wanted) -> Any:
            return store.read_list(lambda tx: tx.run_lists.list_page(wanted, place, 4))

        found = await walk(read)
        assert [run.id for run in found] == [run.id for run in expected], wanted
        total = await store.read_list(lambda tx, wanted=wanted: tx.run_lists.count(wanted))
        assert total.count == len(expected) if total.is_exact else total.count <= len(expected)
        second = await store.read_list(
            lambda tx, wanted=wanted: tx.run_lists.list_page(wanted, None, 4, 4)
        )
        assert [run.id for run in second] == [run.id for run in expected[4:8]][: len(second)]


@pytest.mark.spec("C2", "T2", "X13")
@pytest.mark.usefixtures("short_looks")
async def test_tasks_are_listed_whole_by_any_filters(store: SqlStore) -> None:

    def fill(tx: Any) -> None:
        tasks = []
        for n in range(40):
            made = definition(
                "a%b" if n % 4 == 0 else f"plain {n}",
                tags=("x_y",) if n % 6 == 0 else ("other",),
                exec_type="ASYNC" if n % 5 == 0 else "SYNC",
                target_url="" if n % 7 == 0 else "http://t/",
            )
            tasks.append(a_task(f"j{n}", made, tx.now, None, "T"))
        ids = tx.tasks.insert(tasks)
        for task_id in ids[10:20]:
            task = tx.tasks.find(task_id)
            assert tx.tasks.delete_if_living(task, task.definition)
        for task_id in ids[::3]:
            task = tx.tasks.find(task_id)
            if not task.is_deleted:
                assert tx.tasks.change_if_version(
                    task, task.definition, "DISABLED", None, None, 0, "paused"
                )

    await store.transact(fill)
    living = await store.read(lambda tx: tx.tasks.list_tasks(limit=1000))
    assert len(living) == 30

    def fits(task: Task, wanted: TaskFilter) -> bool:
        made = task.definition
        return (
            wanted.status in (None, task.status)
            and (wanted.name is None or wanted.name in made.name)
            and (wanted.tag is None or wanted.tag in made.tags)
            and (not wanted.is_timer or (made.exec_type == "SYNC" and made.target_url != ""))
        )

    for status, name, tag, is_timer in product(
        (None, "ENABLED", "DISABLED"), (None, "%", "plain"), (None, "x_y"), (False, True)
    ):
        wanted = TaskFilter(status=status, name=name, tag=tag, is_timer=is_timer)
        expected = [task.id for task in living if fits(task, wanted)]

        def read(place: Place | None, wanted: TaskFilter = wanted) -> Any:
            after = place[0] if place else 0
            return store.read_list(lambda tx: tx.task_lists.list_page(wanted, after, 4))

        assert [task.id for task in await walk(read)] == expected, wanted
        if not is_timer:
            total = await store.read_list(lambda tx, wanted=wanted: tx.task_lists.count(wanted))
            assert total.count == len(expected) if total.is_exact else total.count <= len(expected)


@pytest.mark.spec("Q7", "X13")
@pytest.mark.usefixtures("short_looks")
async def test_queue_jobs_are_listed_whole_by_any_filters(
    store: SqlStore, database: Database
) -> None:
    classes = [class_of(addon, kind, 1, ()) for addon in "ab" for kind in ("x", "y")]

    def fill(tx: Any) -> None:
        news = [
            NewJob(
                job_id=job_id,
                priority="NORMAL",
                job_class=classes[n % 4],
                constraints_json="{}",
                payload_json="{}",
                client_request_id=None,
                max_attempts=1,
                run_at=None,
                fairness_key=None,
            )
            for n, job_id in enumerate(new_ordered_uuids(tx.now, 50))
        ]
        submit_jobs(tx, news, classes, True)

    await store.transact(fill)
    # Times that grow with the numbers, but for neighbours.
    with_keys = ("job_keys",) if store.dialect.has_keys else ()
    for table in ("scheduler_job_runs", *with_keys):
        database.ask(f"UPDATE {table} SET created_at = seq * 1000000 - (seq % 2) * 2000000")
    database.ask("UPDATE scheduler_job_runs SET state = 'FAILED' WHERE seq % 3 = 0")
    jobs = await walk(
        lambda place: store.read_list(
            lambda tx: tx.job_lists.list_page(JobFilter(), place[0] if place else None, 20)
        )
    )
    assert [job.seq for job in jobs] == sorted((job.seq for job in jobs), reverse=True)
    assert len(jobs) == 50

    def fits(job: Job, wanted: JobFilter) -> bool:
        return (
            wanted.state in (None, job.state)
            and wanted.addon_id in (None, job.addon_id)
            and wanted.job_type in (None, job.job_type)
            and (wanted.created_after is None or job.created_at > wanted.created_after)
            and (wanted.created_before is None or job.created_at < wanted.created_before)
        )

    for state, addon_id, job_type, after, before in product(
        (None, "FAILED", "DONE"), (None, "a"), (None, "y"), (None, 10 * SECOND), (None, 30 * SECOND)
    ):
        wanted = JobFilter(state, addon_id, job_type, after, before)

        def read(place: Place | None, wanted: JobFilter = wanted) -> Any:
            return store.read_list(
                lambda tx: tx.job_lists.list_page(wanted, place[0] if place else None, 4)
            )

        found = [job.seq for job in await walk(read)]
        assert found == [job.seq for job in jobs if fits(job, wanted)], wanted


@pytest.mark.spec("C2", "C5")
async def test_totals_follow_whatever_becomes_of_runs_and_tasks(
    store: SqlStore, database: Database
) -> None:
    [one, other] = await store.transact(fill_runs)

    def change(tx: Any) -> None:
        ids = tx.run_changes.insert(
            [new_run(one, tx.now, "RUNNING", held_by="me", token=5) for _ in range(4)]
        )
        done = tx.run_changes.finish(
            [
                a_finish(ids[0], 5, one),
                a_finish(ids[1], 5, one, new="FAILED", reason="x", error="e"),
                a_finish(ids[2], 6, one),  # another token: nothing happens
            ]
        )
        assert done == [True, True, False]
        assert tx.run_changes.move(
            [
                a_finish(ids[2], 5, one, new="RETRYING", wake_at=9),
                a_finish(ids[3], 7, one, new="RETRYING", wake_at=9),
            ]
        ) == [True, False]
        assert tx.history.remove_runs([ids[0], ids[2]]) == 1

    await store.transact(change)

    def fail(tx: Any) -> None:
        tx.run_changes.insert([new_run(one, tx.now, "FAILED")])
        raise InvalidError("no")

    with pytest.raises(InvalidError):
        await store.transact(fail)

    def change_tasks(tx: Any) -> None:
        task = tx.tasks.find(other)
        assert tx.tasks.change_if_version(
            task, task.definition, "DISABLED", None, None, 0, "paused"
        )
        assert not tx.tasks.change_if_version(task, task.definition, "ENABLED", None, None, 0, "")
        task = tx.tasks.find(one)
        assert tx.tasks.delete_if_living(task, task.definition)
        assert not tx.tasks.delete_if_living(task, task.definition)

    await store.transact(change_tasks)
    counted = dict(database.ask("SELECT status, COUNT(*) FROM task_runs GROUP BY status"))
    for status in (*STATES, "RUNNING", "RETRYING", "TIMEOUT"):
        total = await store.read_list(
            lambda tx, status=status: tx.run_lists.count(RunFilter(status=status))
        )
        assert (total.count, total.is_exact) == (counted.get(status, 0), True), status
    total = await store.read_list(lambda tx: tx.run_lists.count(RunFilter()))
    assert total.count == sum(counted.values())
    assert await store.read(lambda tx: tx.task_lists.count_by_status()) == {"DISABLED": 1}
    assert await store.read(lambda tx: tx.history.find_miscounts()) == []


@pytest.mark.spec("C5")
async def test_totals_that_another_version_did_not_count_are_set_right(
    store: SqlStore, database: Database
) -> None:
    await store.transact(fill_runs)
    database.ask("UPDATE row_counts SET n = n + 3 WHERE entry = 'FAILED'")
    database.ask("DELETE FROM row_counts WHERE kind = 'tasks'")
    wrong = await store.read(lambda tx: tx.history.find_miscounts())
    assert sorted(wrong) == [("runs", "FAILED", -3, 0), ("tasks", "ENABLED", 2, 0)]
    assert await store.transact(lambda tx: tx.history.correct_counts(wrong)) == 2
    assert await store.read(lambda tx: tx.history.find_miscounts()) == []
    database.ask("UPDATE row_counts SET n = n + 1 WHERE entry = 'FAILED' AND shard <> 64")
    again = await store.read(lambda tx: tx.history.find_miscounts())
    assert [(one.by, one.seen) for one in again] == [(-1, -3)]
    assert await store.transact(lambda tx: tx.history.correct_counts(again)) == 1
    assert await store.read(lambda tx: tx.history.find_miscounts()) == []


@pytest.mark.spec("C5", "X3")
async def test_two_instances_that_start_together_correct_a_total_once(
    store: SqlStore, database: Database
) -> None:
    await store.transact(fill_runs)
    database.ask("UPDATE row_counts SET n = n + 3 WHERE entry = 'FAILED'")
    one = await store.read(lambda tx: tx.history.find_miscounts())
    other = await store.read(lambda tx: tx.history.find_miscounts())
    assert await store.transact(lambda tx: tx.history.correct_counts(one)) == 1
    assert await store.transact(lambda tx: tx.history.correct_counts(other)) == 0
    assert await store.read(lambda tx: tx.history.find_miscounts()) == []


@pytest.mark.spec("C5", "X13")
async def test_a_page_too_deep_to_walk_to_is_refused_and_one_behind_the_last_is_empty(
    store: SqlStore, database: Database
) -> None:
    await store.transact(fill_runs)
    page = await store.read_list(reading.list_runs, RunFilter(), 10**9, 500, None)
    assert (list(page.runs), page.total.count) == ([], 60)
    found, total = await store.read_list(reading.list_tasks, TaskFilter(), 10**9, 500, None)
    assert (list(found), total.count) == ([], 2)
    database.ask("UPDATE row_counts SET n = 1000000")  # as many as that
    with pytest.raises(InvalidError, match="cursor=next_cursor") as refused:
        await store.read_list(reading.list_runs, RunFilter(), MAX_DEPTH // 20 + 2, 20, None)
    assert refused.value.field == "page"
    with pytest.raises(InvalidError, match="cursor=next_cursor"):
        await store.read_list(reading.list_tasks, TaskFilter(), MAX_DEPTH // 20 + 2, 20, None)


@pytest.mark.spec("X13")
async def test_a_list_that_takes_too_long_is_stopped_and_holds_up_no_other_read(
    store: SqlStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = {
        "sqlite": "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) "
        "SELECT COUNT(*) FROM n",
        "postgresql": "SELECT pg_sleep(60)",
        "mysql": "SELECT SLEEP(60) FROM instances",
    }[database.kind]

    def dawdle(tx: Any) -> Any:
        session: Session = tx.run_lists._session
        return session.raw(forever)

    if database.kind == "mysql":  # SLEEP alone is no query that a limit stops
        database.ask(
            "INSERT INTO instances (id, host, version, started_at, alive_at, lease_until) "
            "VALUES ('i', 'h', 'v', 1, 1, 1)"
        )
    began = time.monotonic()
    slow = [asyncio.ensure_future(store.read_list(dawdle)) for _ in range(LIST_READERS)]
    await asyncio.sleep(0.1)
    assert await store.read(lambda tx: tx.run_lists.count(RunFilter())) is not None
    assert time.monotonic() - began < LIST_SECONDS
    waiting = asyncio.ensure_future(store.read_list(lambda tx: tx.run_lists.count(RunFilter())))
    for one in slow:
        with pytest.raises(StoreDownError, match="took longer than 2 s"):
            await one
    assert time.monotonic() - began < LIST_SECONDS * 4
    [answer] = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(answer, StoreDownError):  # it waited as long as a list may
        assert "was not begun" in str(answer)
    else:
        assert answer.count == 0  # type: ignore[union-attr]
    assert (await store.read_list(lambda tx: tx.run_lists.count(RunFilter()))).count == 0
