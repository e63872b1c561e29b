"""The ledger over HTTP: shapes, windows, pages and refusals."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.api.tasks import definitions, ledger
from ksana.api.tasks.members import Defaults, TaskSurface
from ksana.base.clock import VirtualClock
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.callbacks import CallbackService
from ksana.service.tasks.definitions import TaskService
from ksana.service.tasks.ledger import LedgerService
from ksana.service.tasks.runs import RunService
from tests.api.ground import client_of, open_house
from tests.api.tasks_ground import Ground, SilentHints

pytestmark = pytest.mark.spec("B2")

PATH = "/api/v1/ledger"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        hints, store = SilentHints(), core.store
        surface = TaskSurface(
            TaskService(store, clock, hints, SECOND),
            RunService(store, hints),
            CallbackService(store, clock, hints, HOUR, True),
            Defaults(),
            clock,
            BackfillService(store, hints, SECOND),
        )
        routes = [
            *definitions.routes(surface),
            *ledger.routes(LedgerService(store, 30 * DAY, SECOND), clock),
        ]
        async with client_of(core.app(*routes)) as client:
            yield Ground(client, clock, store, core)


async def test_the_ledger_has_a_row_for_each_task_and_sums_them(ground: Ground) -> None:
    task = await ground.make_task(schedule={"kind": "every", "every": "1m"})
    other = await ground.make_task(name="other", schedule={"kind": "every", "every": "10m"})
    await ground.clock.advance(30 * MINUTE)
    answer = await ground.ask("GET", f"{PATH}?to=2026-01-01T00:30:01Z", status=200)
    assert (answer["from"], answer["to"]) == ("2025-12-31T00:30:01Z", "2026-01-01T00:30:01Z")
    assert answer["total"] == {
        "expected": 33,
        "fired": 0,
        "by_status": {},
        "skipped": {},
        "forgotten": 0,
        "pending": 33,
        "missing": 0,
    }
    assert [(row["task_id"], row["name"], row["expected"]) for row in answer["tasks"]] == [
        (task["id"], task["name"], 30),
        (other["id"], "other", 3),
    ]
    assert answer["next_cursor"] is None
    row = answer["tasks"][0]
    assert (row["deleted"], row["known_from"], row["job_id"]) == (False, None, task["job_id"])


async def test_pages_go_on_where_the_last_one_ended(ground: Ground) -> None:
    ids = [
        (await ground.make_task(name=f"t{at}", schedule={"kind": "every", "every": "1m"}))["id"]
        for at in range(3)
    ]
    seen, cursor = [], ""
    for _ in range(5):
        answer = await ground.ask("GET", f"{PATH}?limit=1{cursor}", status=200)
        seen += [row["task_id"] for row in answer["tasks"]]
        if answer["next_cursor"] is None:
            break
        cursor = f"&cursor={answer['next_cursor']}"
    assert seen == ids


async def test_one_task_is_asked_by_its_id_also_when_it_is_deleted(ground: Ground) -> None:
    task = await ground.make_task(schedule={"kind": "every", "every": "1m"})
    await ground.clock.advance(3 * MINUTE)
    await ground.ask("DELETE", f"/api/v1/tasks/{task['id']}")
    await ground.clock.advance(MINUTE)
    answer = await ground.ask("GET", f"{PATH}?task_id={task['id']}", status=200)
    [row] = answer["tasks"]
    assert (row["deleted"], row["expected"], row["missing"]) == (True, 3, 0)
    assert row["skipped"] == {"TASK_DELETED": 3}
    await ground.clock.advance(3 * DAY)
    answer = await ground.ask("GET", PATH, status=200)
    assert answer["tasks"] == []
    await ground.ask("GET", f"{PATH}?task_id=99", status=404)


async def test_windows_and_cursors_that_make_no_sense_are_refused(ground: Ground) -> None:
    for query, field in (
        ("from=yesterday", "from"),
        ("to=2026-01-01T00:00:00", "to"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("to=2099-01-01T00:00:00Z", "to"),
        ("cursor=abc", "cursor"),
        ("cursor=1.2.3", "cursor"),
        ("limit=201", "limit"),
        ("task_id=0", "task_id"),
    ):
        await ground.refused("GET", f"{PATH}?{query}", None, field)
