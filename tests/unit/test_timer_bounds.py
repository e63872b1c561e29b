"""A job of the file of timers at its bounds: which member is refused, and where it is placed."""

import json
from typing import Any

import msgspec
import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, MILLISECOND, SECOND, format_instant
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Every
from ksana.domain.tasks.timer_document import (
    MAX_TASK_ID,
    StoredTimer,
    place,
    read_timer,
    write_head,
)
from tests.unit.task_ground import NOW, a_task

pytestmark = pytest.mark.spec("T9")

HTTP = {"url": "http://x/"}
EVERY = {"kind": "every", "every": "10s", "anchor_at": format_instant(0)}
TEN = 10 * SECOND


def read(**members: Any) -> StoredTimer:
    job = {"http": HTTP, "schedule": EVERY, **members}
    return read_timer(json.dumps(job).encode(), NOW)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"id": "a b"}, "id"),
        ({"task_id": 0}, "task_id"),
        ({"task_id": MAX_TASK_ID + 1}, "task_id"),
        ({"version": 0}, "version"),
        ({"runs_fired": -1}, "version"),
        ({"task": {"dialect": "X"}}, "task.dialect"),
        ({"created_at": "soon"}, "created_at"),
        ({"updated_at": "soon"}, "updated_at"),
        ({"last_run_at": "soon"}, "last_run_at"),
        ({"next_run_at": "soon"}, "next_run_at"),
        ({"http": {**HTTP, "method": "G T"}}, "http.method"),
        ({"http": {"url": "nowhere"}}, "http.url"),
        ({"http": {**HTTP, "headers": {"Host": "x"}}}, "http.headers"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1001}, "max_retries"),
        ({"name": "n" * 129}, "name"),
        ({"name": " ", "task": {"dialect": "C"}}, "name"),
        ({"retry_backoff": -1}, "retry_backoff"),
        ({"retry_backoff": "721h"}, "retry_backoff"),
        ({"timeout": "25h"}, "timeout"),
        ({"timeout": 0.0005}, "timeout"),
        ({"task": {"nonsense": 1}}, "task.nonsense"),
        ({"task": {"retry": {"nonsense": 1}}}, "task.retry"),
        ({"task": {"options": 1}}, "task.options"),
        ({"task": {"tags": 5}}, "task"),
    ],
)
def test_what_is_wrong_is_named(members: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError) as caught:
        read(**members)
    assert caught.value.field == field


def test_what_lies_at_the_bounds_is_taken() -> None:
    assert read(task_id=1).task_id == 1
    assert read(task_id=MAX_TASK_ID).task_id == MAX_TASK_ID
    assert (read(version=1).version, read(runs_fired=0).runs_fired) == (1, 0)
    assert read(max_retries=0).definition.retry.max_retries == 0
    assert read(max_retries=1000).definition.retry.max_retries == 1000
    assert read(name="n" * 128).definition.name == "n" * 128
    assert read(name=" ").definition.name == " "
    assert read(name="n", task={"dialect": "C"}).dialect == "C"
    assert read(retry_backoff=0).definition.retry.initial_delay_us == 0
    assert read(retry_backoff="720h").definition.retry.initial_delay_us == 30 * DAY
    assert read(timeout="24h").definition.timeout_us == DAY
    assert read(timeout=0.001).definition.timeout_us == MILLISECOND
    queue = {"queue": {"addon_id": "a", "job_type": "t"}}
    job = read(type="queue", http={}, timeout="720h", task={"options": queue})
    assert job.definition.timeout_us == 30 * DAY
    with pytest.raises(InvalidError):
        read(type="queue", http={}, timeout="721h", task={"options": queue})


def test_long_words_of_the_last_run_are_cut() -> None:
    stored = read(last_status="s" * 30, last_error="e" * 2000)
    assert (len(stored.last_status), len(stored.last_error)) == (24, 1024)
    exact = read(last_status="s" * 24, last_error="e" * 1024)
    assert (len(exact.last_status), len(exact.last_error)) == (24, 1024)


def test_instants_are_read_each_into_its_own_member() -> None:
    names = ("created_at", "updated_at", "last_run_at", "next_run_at")
    stored = read(**{name: format_instant(n * SECOND) for n, name in enumerate(names, 1)})
    assert [getattr(stored, name) for name in names] == [n * SECOND for n in (1, 2, 3, 4)]


def placed(alive_at: int = NOW, **members: Any) -> Any:
    return place(read(**members), 9, "j", alive_at, NOW)


@pytest.mark.spec("T9", "C10")
@pytest.mark.parametrize(
    ("members", "slot"),
    [
        ({}, NOW + TEN),
        ({"next_run_at": format_instant(NOW + 5 * TEN)}, NOW + 5 * TEN),
        ({"next_run_at": format_instant(NOW + 5 * TEN + 1)}, NOW + TEN),
        ({"schedule": {**EVERY, "max_runs": 2}, "runs_fired": 2}, None),
        ({"schedule": {**EVERY, "max_runs": 2}, "runs_fired": 1}, NOW + TEN),
    ],
)
def test_a_job_is_placed_at_the_slot_that_was_next(
    members: dict[str, Any], slot: int | None
) -> None:
    task = placed(**members)
    assert (task.next_slot_at, task.fire_at) == (slot, slot)
    off = placed(enabled=False, **members)
    assert (off.next_slot_at, off.fire_at, off.status) == (slot, None, "DISABLED")


@pytest.mark.parametrize(
    ("run_at", "members", "is_open"),
    [
        (NOW + 1, {"last_run_at": format_instant(1)}, True),
        (NOW, {"last_run_at": format_instant(1)}, False),
        (NOW, {"last_status": "success"}, False),
        (NOW, {}, True),
        (NOW, {"last_status": "paused"}, True),
        (NOW, {"last_status": "success", "next_run_at": format_instant(NOW)}, True),
    ],
)
def test_a_one_time_job_is_open_until_it_ran(
    run_at: int, members: dict[str, Any], is_open: bool
) -> None:
    schedule = {"kind": "once", "run_at": format_instant(run_at)}
    assert placed(schedule=schedule, **members).next_slot_at == (run_at if is_open else None)


def test_a_job_is_placed_with_all_that_is_known_of_it() -> None:
    task = placed()
    assert (task.id, task.job_id, task.status, task.is_deleted) == (9, "j", "ENABLED", False)
    assert (task.created_at, task.updated_at) == (NOW, NOW)
    made = placed(created_at=format_instant(SECOND))
    assert (made.created_at, made.updated_at) == (SECOND, SECOND)
    changed = placed(created_at=format_instant(SECOND), updated_at=format_instant(2 * SECOND))
    assert (changed.created_at, changed.updated_at) == (SECOND, 2 * SECOND)
    jittered = Every(TEN, 0, True, jitter_us=9 * SECOND)
    definition = msgspec.structs.replace(read().definition, schedule=jittered)
    stored = msgspec.structs.replace(read(), definition=definition)
    late = place(stored, 9, "j", NOW, NOW)
    assert late.next_slot_at is not None
    assert late.fire_at == schedules.fire_at(jittered, "j", late.next_slot_at)


def test_the_head_says_whether_a_task_is_enabled() -> None:
    assert write_head(a_task(target_url="http://x/"))["enabled"] is True
    assert write_head(a_task(target_url="http://x/", status="DISABLED"))["enabled"] is False
