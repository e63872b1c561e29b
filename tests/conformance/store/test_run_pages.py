"""Pages of runs, on every SQL store: a page has room for what its runs grow to when they are
shown."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import SECOND
from ksana.domain.tasks.call_records import CallEntry, read_attempts, write_call
from ksana.domain.tasks.outcome import MAX_ATTEMPTS_KEPT
from ksana.domain.tasks.records import Run
from ksana.ports.pages import PageRows, Place
from ksana.ports.tasks.runs import RunFilter
from ksana.store.sql import SqlStore
from ksana.store.sql.tasks import run_lists
from tests.conformance.store.test_history import new_run
from tests.conformance.store.test_list_pages import definition, walk
from tests.ground.task_rows import a_finish, a_task

RUNS = range(1, 61)


def fill_runs_tried_often(tx: Any) -> None:
    """Runs with as many attempts as are kept, in the shortest form."""
    [task_id] = tx.tasks.insert([a_task("tried", definition("tried"), tx.now, None)])
    runs = [msgspec.structs.replace(new_run(task_id, n * SECOND, "RUNNING"), token=n) for n in RUNS]
    call = write_call(CallEntry(1, tx.now, 1, "SUCCESS", 200, None, "a", 1, 0, 0, 0, 1, 1)).decode()
    attempts = f"[{','.join([call] * MAX_ATTEMPTS_KEPT)}]"
    ends = [
        msgspec.structs.replace(a_finish(run_id, n, task_id), attempts=attempts)
        for n, run_id in zip(RUNS, tx.run_changes.insert(runs), strict=True)
    ]
    assert all(tx.run_changes.finish(ends))


@pytest.mark.spec("X13")
async def test_a_page_of_runs_has_room_for_what_their_attempts_grow_to_when_shown(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.transact(fill_runs_tried_often)
    most = 300_000
    monkeypatch.setattr(run_lists, "MAX_PAGE_BYTES", most)

    async def read(place: Place | None) -> PageRows[Run]:
        page: PageRows[Run] = await store.read_list(
            lambda tx: tx.run_lists.list_page(RunFilter(), place, 500)
        )
        shown = sum(len(msgspec.json.encode(read_attempts(run.attempts))) for run in page)
        assert page and shown <= most
        return page

    found = await walk(read)
    assert [run.token for run in found] == sorted(RUNS, reverse=True)
