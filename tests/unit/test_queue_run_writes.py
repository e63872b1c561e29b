"""Runs that are done by queue jobs: what is written when they start, when their jobs end, and when
their time is over."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import MINUTE, SECOND
from ksana.domain.handover import HandedEnd, HandedJob, job_id_of
from ksana.domain.tasks.job_runs import GONE, OVERDUE
from ksana.domain.tasks.records import QUEUE_PLACE, RetryPolicy, Run, Task
from ksana.engine.tasks.claimed_run import AttemptOver, claimed_run_of, reply_of, waiting_run_of
from ksana.engine.tasks.queue_runs import (
    BATCH,
    Handled,
    expire_job,
    look,
    settle_ends,
    start_runs,
)
from ksana.ports.handover import NotedEnd
from tests.unit.queue_run_ground import (
    NOTHING,
    ScriptedQueue,
    queue_task,
    ready_run,
    start_one,
    tx_of,
)
from tests.unit.scripted_tx import ScriptedTx
from tests.unit.task_ground import NOW, a_run, a_task


@pytest.mark.parametrize("hosts", [[], [QUEUE_PLACE], ["a"]])
@pytest.mark.parametrize("has_any", [True, False])
def test_a_look_tells_ready_runs_and_noted_ends(hosts: list[str], has_any: bool) -> None:
    tx = ScriptedTx(run_due_list_ready_hosts=hosts, handover_ends_has_any=has_any)
    assert look(tx) == (hosts == [QUEUE_PLACE], has_any)


# Starting


@pytest.mark.parametrize(
    ("status", "attempt"), [("SCHEDULED", 1), ("RETRYING", 2)], ids=["first", "again"]
)
def test_a_run_starts_with_its_job(status: str, attempt: int) -> None:
    queue = ScriptedQueue()
    change, handled = start_one(queue, status=status)
    uid = f"{60:032x}"
    assert (change.new, change.attempt, change.held_by) == ("RUNNING", attempt, None)
    assert change.wake_at == NOW + MINUTE, "when its time is over"
    assert msgspec.json.decode(change.data)["job_id"] == job_id_of(uid, attempt)
    [order] = queue.entered
    assert (order.job_id, order.request_id) == (job_id_of(uid, attempt), f"run:{uid}:{attempt}")
    assert handled == Handled(False, set(), True, [], [order])


@pytest.mark.parametrize(
    ("why", "error"),
    [
        ("type", "the task is of type http since this run was made"),
        ("fault", "no such addon"),
        ("taken", "it is taken"),
    ],
)
def test_a_run_whose_job_cannot_be_fails_without_one(why: str, error: str) -> None:
    queue, task = ScriptedQueue(), a_task() if why == "type" else queue_task()
    queue.fault = "no such addon" if why == "fault" else None
    queue.taken = {f"run:{60:032x}:1"}
    change, handled = start_one(queue, task, is_careful=why == "taken")
    assert (change.new, change.error, change.reason) == ("FAILED", error, "JOB_REFUSED")
    assert (queue.entered, handled.orders) == ([], [])
    held = claimed_run_of(ready_run(), task, change, "me", 0)
    [(over, status)] = handled.overs
    end = HandedEnd("gave_up", error)
    assert (status, over.reply) == ("FAILED", reply_of(end, NOW, NOW))
    assert over == AttemptOver(
        msgspec.structs.replace(held, token=over.held.token, attempt=over.held.attempt),
        None,
        None,
        over.reply,
        NOW,
        NOW,
    )


def test_whether_an_id_is_taken_is_looked_up_only_by_the_careful() -> None:
    queue = ScriptedQueue()
    queue.taken = {f"run:{60:032x}:1"}
    start_one(queue)
    assert (len(queue.entered), queue.beside) == (1, [])
    start_one(other := ScriptedQueue(), is_careful=True)
    assert (len(other.entered), other.beside) == (1, [0])


def test_each_is_looked_up_beside_those_that_start_with_it() -> None:
    pairs = [(ready_run(60 + n), queue_task()) for n in range(4)]
    queue = ScriptedQueue()
    queue.taken = {f"run:{61:032x}:1"}
    start_runs(tx_of(run_due_list_ready=pairs), queue, "me", is_careful=True)
    assert (queue.beside, len(queue.entered)) == ([0, 1, 1, 2], 3)


@pytest.mark.parametrize("fault", [None, "no such addon"])
def test_a_run_that_was_cancelled_meanwhile_has_no_job(fault: str | None) -> None:
    queue = ScriptedQueue()
    queue.fault = fault
    _, handled = start_one(queue, is_done=False)
    assert (queue.entered, handled.overs, handled.orders) == ([], [], [])


@pytest.mark.parametrize(("count", "is_full"), [(0, False), (BATCH - 1, False), (BATCH, True)])
def test_so_many_are_started_in_one_transaction(count: int, is_full: bool) -> None:
    pairs = [(ready_run(1000 + n), queue_task()) for n in range(count)]
    queue = ScriptedQueue()
    handled = start_runs(tx_of(run_due_list_ready=pairs), queue, "me")
    assert (handled.is_full, len(queue.entered)) == (is_full, count)


# Ends


def a_job(run: Run, end: HandedEnd | None = None, **members: Any) -> HandedJob:
    given: dict[str, Any] = {
        "job_id": job_id_of(run.uid, run.attempt),
        "request_id": f"run:{run.uid}:{run.attempt}",
        "state": "DONE",
        "payload": "{}",
        "created_at": NOW - 9 * SECOND,
        "ended_at": NOW - SECOND,
        "end": end,
        "has_begun": True,
    }
    return HandedJob(**given | members)


DONE = HandedEnd("done", result="{}")
WAITING = a_run(held_by=None)


def settle_one(
    job: HandedJob | None, run: Run | None = WAITING, *, task: Task | None = None, **answers: Any
) -> tuple[Handled, ScriptedTx]:
    noted = [NotedEnd(1, job_id_of(WAITING.uid, WAITING.attempt))]
    tx = tx_of(
        handover_ends_list_noted=noted,
        runs_find_id=lambda uid: run.id if run is not None and run.uid == uid else None,
        runs_find=lambda run_id: run,
        tasks_find=lambda task_id, **_: task,
        **answers,
    )
    handled = settle_ends(tx, ScriptedQueue(*[] if job is None else [job]), "me")
    assert tx.args_of("handover_ends.list_noted") == [(BATCH,)]
    assert tx.args_of("handover_ends.remove") == [(noted,)], "whatever came of it"
    return handled, tx


@pytest.mark.parametrize(
    ("end", "status"), [(DONE, "SUCCESS"), (HandedEnd("gave_up", "why"), "FAILED")]
)
def test_the_end_of_a_job_ends_the_run_that_waits_for_it(end: HandedEnd, status: str) -> None:
    task = queue_task()
    handled, tx = settle_one(a_job(WAITING, end), task=task)
    [change] = tx.args_of("run_changes.finish")[0][0]
    assert (change.run_id, change.new, change.end_time) == (60, status, NOW - SECOND)
    over = AttemptOver(
        waiting_run_of(WAITING, task, "me"),
        None,
        None,
        reply_of(end, NOW - 9 * SECOND, NOW - SECOND),
        NOW - 9 * SECOND,
        NOW - SECOND,
    )
    assert handled == Handled(False, set(), False, [(over, status)])


def test_a_job_that_does_not_say_when_it_ended_ended_now() -> None:
    handled, _ = settle_one(a_job(WAITING, DONE, ended_at=None), task=queue_task())
    assert handled.overs[0][0].ended_at == NOW


@pytest.mark.parametrize(
    ("why", "job", "run", "task"),
    [
        ("the job is gone", None, WAITING, queue_task()),
        ("it goes on", a_job(WAITING), WAITING, queue_task()),
        ("it is nobody's", a_job(WAITING, DONE, request_id="mine"), WAITING, queue_task()),
        ("the run is gone", a_job(WAITING, DONE), None, queue_task()),
        ("another attempt", a_job(WAITING, DONE), a_run(held_by=None, attempt=3), queue_task()),
        ("it is held", a_job(WAITING, DONE), a_run(), queue_task()),
        (
            "it is over",
            a_job(WAITING, DONE),
            a_run(held_by=None, status="CANCELED"),
            queue_task(),
        ),
        ("the task is gone", a_job(WAITING, DONE), WAITING, None),
    ],
)
def test_a_run_that_does_not_wait_for_a_job_does_not_hear_of_its_end(
    why: str, job: HandedJob | None, run: Run | None, task: Task | None
) -> None:
    handled, _ = settle_one(job, run, task=task)
    assert handled == NOTHING, why


def test_an_end_that_came_too_late_is_told_to_nobody() -> None:
    handled, _ = settle_one(a_job(WAITING, DONE), task=queue_task(), run_changes_finish=[False])
    assert handled.overs == []


@pytest.mark.parametrize(("count", "is_full"), [(0, False), (BATCH - 1, False), (BATCH, True)])
def test_so_many_ends_are_settled_in_one_transaction(count: int, is_full: bool) -> None:
    noted = [NotedEnd(n, str(n)) for n in range(count)]
    tx = tx_of(handover_ends_list_noted=noted)
    assert settle_ends(tx, ScriptedQueue(), "me").is_full is is_full


# Time that is over


@pytest.mark.parametrize(
    ("job", "status", "error", "began_at", "ended_at"),
    [
        (None, "FAILED", GONE, WAITING.updated_at, NOW),
        (a_job(WAITING, ended_at=None), "TIMEOUT", OVERDUE, NOW - 9 * SECOND, NOW),
        (a_job(WAITING, DONE), "SUCCESS", None, NOW - 9 * SECOND, NOW - SECOND),
    ],
    ids=["gone", "goes on", "nobody said so"],
)
def test_when_the_time_of_a_run_is_over_its_job_is_cancelled(
    job: HandedJob | None, status: str, error: str | None, began_at: int, ended_at: int
) -> None:
    queue = ScriptedQueue(*[] if job is None else [job])
    change, over = expire_job(ScriptedTx(), queue, WAITING, queue_task(), "me")
    job_id = job_id_of(WAITING.uid, 2)
    assert queue.canceled == [(job_id, "run 60 timed out")]
    assert (change.new, change.error) == (status, error)
    assert (over.started_at, over.ended_at) == (began_at, ended_at)
    assert msgspec.json.decode(change.data)["job_id"] == job_id


def test_a_job_that_is_gone_may_have_been_worked_on() -> None:
    task = queue_task(retry=RetryPolicy(max_retries=9), delivery="at_most_once")
    change, _ = expire_job(ScriptedTx(), ScriptedQueue(), WAITING, task, "me")
    assert change.new == "FAILED", "it is not made again"
