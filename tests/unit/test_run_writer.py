"""The one writer of runs: with each new run and each change everything that follows is written, and
nothing for a change that was too late."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import HOUR, SECOND, format_instant
from ksana.domain.dead_letters import NewLetter
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.firing import Counts, Firing, Misfire
from ksana.domain.tasks.records import NewRun, Run, Task
from ksana.engine.tasks.run_writer import (
    Written,
    let_in_runs,
    promote_waiting,
    write_changes,
    write_held_back,
    write_misfire,
    write_runs,
)
from tests.ground.task_rows import a_finish
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import NOW, a_run, a_task

SLOT = format_instant(NOW)


def dated(run_id: int, name: str, data: str = "{}") -> tuple[str, str, tuple[str, ...], str]:
    """An event that may lie with those of other runs."""
    return "RUN", str(run_id), (name,), f'[["{name}",{data},"RUN","{run_id}"]]'


def a_new_run(status: str = "SCHEDULED", **members: Any) -> NewRun:
    given: dict[str, Any] = {
        "uid": "f" * 32,
        "task_id": 7,
        "slot_at": NOW,
        "scheduled_time": NOW,
        "status": status,
        "trigger": "schedule",
        "exec_type": "SYNC",
        "is_counted": True,
        "host": "target",
        "is_ready": False,
        "held_by": None,
        "token": 5,
        "reason": "BELOW_LIMIT",
        "trace_id": "t",
    }
    return NewRun(**given | members)


def a_move(run_id: int, old: str = "RETRYING", new: str = "RETRYING") -> RunChange:
    """A change that ends no attempt: a retry that is about to start."""
    return msgspec.structs.replace(an_end(run_id, event=""), old=old, new=new, record=None)


def an_end(run_id: int, **members: Any) -> RunChange:
    given: dict[str, Any] = {"task_id": 7, **members}
    return a_finish(run_id, 5, given.pop("task_id"), **given)


def all_done(changes: Sequence[RunChange]) -> list[bool]:
    return [True] * len(changes)


def tx_of(**answers: Any) -> ScriptedTx:
    """A transaction in which every change is in time, and nothing waits."""
    given: dict[str, Any] = {
        "run_changes_finish": all_done,
        "run_changes_move": all_done,
        "runs_count_open": lambda ids: {},
    }
    return ScriptedTx(**given | answers)


# New runs


def test_new_runs_are_written_with_their_events() -> None:
    tx = tx_of(run_changes_insert=[1, 2, 3, 4])
    runs = [
        a_new_run("RUNNING"),
        a_new_run("SCHEDULED", slot_at=None, trigger="manual", reason="RUN_NOW"),
        a_new_run("SKIPPED", reason="CONCURRENCY_LIMIT", more=',"active":1'),
        a_new_run("SKIPPED", task_id=8),
    ]
    assert write_runs(tx, runs) == [1, 2, 3, 4]
    start = f'{{"task_id":7,"slot":"{SLOT}","trigger":"schedule","reason":'
    assert tx.told == [
        Told("run_changes.insert", (runs,), {}),
        Told(
            "events.append_dated",
            (
                [
                    dated(1, "RUN_STARTED", start + '"BELOW_LIMIT"}'),
                    dated(
                        2, "RUN_SCHEDULED", '{"task_id":7,"trigger":"manual","reason":"RUN_NOW"}'
                    ),
                    dated(3, "RUN_SKIPPED", start + '"CONCURRENCY_LIMIT","active":1}'),
                    dated(4, "RUN_SKIPPED", start.replace("7", "8", 1) + '"BELOW_LIMIT"}'),
                ],
            ),
            {},
        ),
        Told("rollups.add", ("runs_skipped",), {"count": 2}),
    ]


def test_where_none_was_skipped_none_is_counted() -> None:
    tx = tx_of(run_changes_insert=[1])
    write_runs(tx, [a_new_run("RUNNING")])
    assert tx.verbs() == ["run_changes.insert", "events.append_texts"]


def test_no_run_begins_in_a_state_in_which_runs_end() -> None:
    with pytest.raises(AssertionError, match="a run cannot begin as SUCCESS"):
        write_runs(tx_of(run_changes_insert=[1]), [a_new_run("SUCCESS")])


def test_runs_that_are_held_back_wait_until_their_time() -> None:
    tx = tx_of(run_changes_insert=[1, 2])
    assert write_held_back(tx, [a_new_run(), a_new_run()], [NOW, NOW + SECOND]) == [1, 2]
    assert tx.told[-1] == Told("run_changes.pace", ([(1, NOW), (2, NOW + SECOND)],), {})


# Changes


def test_a_change_brings_its_event_its_count_and_the_last_status_of_its_task() -> None:
    tx = tx_of()
    changes = [
        an_end(1, metric="runs_success", duration_us=2 * SECOND, last_status="success"),
        an_end(2, metric="runs_success", duration_us=SECOND, error="why", last_status="failed"),
        an_end(3, event="", metric="runs_retrying", ready_host="a", task_id=8),
        an_end(
            4, new="RETRYING", event="RUN_RETRYING", data='{"n":1}', wake_at=NOW, ready_host="b"
        ),
    ]
    assert write_changes(tx, changes) == Written([True] * 4, {"a", "b"}, True)
    assert tx.told == [
        Told("run_changes.finish", (changes,), {}),
        Told("events.append_dated", ([dated(1, "RUN_SUCCESS"), dated(2, "RUN_SUCCESS")],), {}),
        Told("events.append_texts", ([("RUN", "4", "RUN_RETRYING", '{"n":1}')],), {}),
        Told("rollups.add", ("runs_success",), {"count": 2, "total": 3.0}),
        Told("rollups.add", ("runs_retrying",), {"count": 1, "total": 0.0}),
        Told("tasks.note_last", ([(7, "failed", "why")], NOW), {}),
    ]


def test_a_success_clears_the_last_error() -> None:
    tx = tx_of()
    write_changes(tx, [an_end(1, last_status="success")])
    assert tx.args_of("tasks.note_last") == [([(7, "success", "")], NOW)]


def test_a_change_that_nothing_follows_from_is_written_alone() -> None:
    tx = tx_of()
    assert write_changes(tx, [an_end(1, event="")]) == Written([True], set(), False)
    assert tx.verbs() == ["run_changes.finish"]


def test_nothing_follows_from_a_change_that_was_too_late() -> None:
    late = an_end(
        1, new="FAILED", metric="runs_failed", last_status="failed", ready_host="a", wake_at=NOW
    )
    in_time = an_end(2, new="FAILED")
    tx = tx_of(run_changes_finish=[False, True])
    assert write_changes(tx, [late, in_time]) == Written([False, True], set(), False)
    assert tx.verbs() == ["run_changes.finish", "events.append_texts", "dead_letters.add"]
    assert tx.args_of("events.append_texts") == [([("RUN", "2", "RUN_SUCCESS", "{}")],)]
    assert tx.args_of("dead_letters.add") == [
        ("tasks", [NewLetter(entity_id="2", source="7", status="FAILED", error="ANSWERED_2XX")])
    ]


@pytest.mark.parametrize(
    ("status", "is_buried"),
    [("SUCCESS", False), ("RETRYING", False), ("FAILED", True), ("TIMEOUT", True)],
)
def test_what_failed_for_good_is_a_dead_letter(status: str, is_buried: bool) -> None:
    tx = tx_of()
    write_changes(tx, [an_end(1, new=status)])
    assert ("dead_letters.add" in tx.verbs()) is is_buried


def test_ends_and_other_moves_are_told_apart_and_answered_in_their_order() -> None:
    changes = [a_move(1), an_end(2), a_move(3), an_end(4)]
    tx = tx_of(run_changes_finish=[True, False], run_changes_move=[False, True])
    assert write_changes(tx, changes).done == [False, True, True, False]
    assert tx.args_of("run_changes.finish") == [([changes[1], changes[3]],)]
    assert tx.args_of("run_changes.move") == [([changes[0], changes[2]],)]


def test_moves_alone_need_one_statement() -> None:
    tx = tx_of()
    assert write_changes(tx, [a_move(1), a_move(2)]).done == [True, True]
    assert tx.verbs() == ["run_changes.move"]


def test_no_run_makes_a_move_that_the_lifecycle_does_not_know() -> None:
    tx = tx_of()
    with pytest.raises(ConflictError):
        write_changes(tx, [a_move(1, old="SUCCESS", new="RUNNING")])
    assert tx.told == []


@pytest.mark.parametrize("lock", [True, False])
def test_tasks_whose_slot_is_freed_are_locked_in_one_order(lock: bool) -> None:
    tx = tx_of()
    ends = [an_end(n, task_id=task_id, frees_slot=True) for n, task_id in enumerate((9, 8, 9))]
    write_changes(tx, [*ends, an_end(4, task_id=1)], lock=lock)
    assert tx.args_of("tasks.lock") == ([([8, 9],)] if lock else [])
    assert not lock or tx.verbs()[0] == "tasks.lock", "before anything is written"
    assert tx.args_of("runs.count_open") == [([8, 9],)]
    assert tx.verbs()[-1] == "runs.count_open", "after what was written"


def test_locks_are_taken_unless_one_says_that_none_is_needed() -> None:
    tx = tx_of()
    write_changes(tx, [an_end(1, frees_slot=True)])
    assert tx.told[0] == Told("tasks.lock", ([7],), {})


# Turns


def waiting_run(run_id: int, task_id: int = 7) -> Run:
    return a_run(
        id=run_id, task_id=task_id, status="SCHEDULED", held_by=None, host=f"host-of-{task_id}"
    )


def turns_tx(counts: dict[int, Counts], limits: dict[int, int]) -> ScriptedTx:
    """Tasks with so many open runs, each with its limit; one without a limit is gone."""

    def find(task_id: int, **_: Any) -> Task | None:
        limit = limits.get(task_id)
        return None if limit is None else a_task(id=task_id, max_concurrency=limit)

    def list_waiting(task_id: int, room: int) -> list[Run]:
        assert room > 0
        return [waiting_run(10 * task_id + n, task_id) for n in range(room)]

    return tx_of(
        runs_count_open=lambda ids: {one: counts[one] for one in ids},
        tasks_find=find,
        run_due_list_waiting=list_waiting,
    )


@pytest.mark.parametrize(
    ("why", "active", "waiting", "limit", "started"),
    [
        ("nobody waits", 0, 0, 2, 0),
        ("no room", 2, 1, 2, 0),
        ("more than the limit, since it was lowered", 3, 1, 2, 0),
        ("room for one", 1, 5, 2, 1),
        ("room for two", 0, 5, 2, 2),
    ],
)
def test_as_many_that_wait_are_started_as_there_is_room_for(
    why: str, active: int, waiting: int, limit: int, started: int
) -> None:
    tx = turns_tx({7: Counts(active, waiting)}, {7: limit})
    assert promote_waiting(tx, [7]) == ({"host-of-7"} if started else set()), why
    moved = [change.run_id for args in tx.args_of("run_changes.move") for change in args[0]]
    assert moved == [70 + n for n in range(started)]


def test_a_task_of_which_nobody_waits_holds_up_no_other() -> None:
    tx = turns_tx({7: Counts(1, 0), 8: Counts(0, 1), 9: Counts(0, 1)}, {7: 1, 9: 1})
    assert promote_waiting(tx, [7, 8, 9]) == {"host-of-9"}, "the eighth is gone"


def test_what_starts_because_another_ended_is_told_with_it() -> None:
    tx = turns_tx({7: Counts(0, 1)}, {7: 1})
    written = write_changes(tx, [an_end(1, frees_slot=True, ready_host="own")])
    assert written.ready_hosts == {"own", "host-of-7"}


# Runs of a backfill


def held_back(run_id: int, wake_at: int = NOW) -> Run:
    return a_run(
        id=run_id,
        status="SCHEDULED",
        trigger="backfill",
        is_counted=False,
        held_by=None,
        wake_at=wake_at,
        token=run_id,
    )


def test_runs_are_let_in_while_their_task_has_room_and_the_rest_is_put_off() -> None:
    tx = turns_tx({7: Counts(1, 0)}, {7: 2})
    assert let_in_runs(tx, 7, [held_back(1), held_back(2)]) == {"target"}
    assert tx.told[0] == Told("tasks.find", (7,), {"lock": True})
    assert tx.args_of("run_changes.count_in") == [([(1, 1)],)]
    assert [change.run_id for change in tx.args_of("run_changes.move")[0][0]] == [1]
    assert tx.args_of("run_changes.put_off") == [(7, SECOND)]


def test_where_all_have_room_nobody_is_put_off() -> None:
    tx = turns_tx({7: Counts(0, 0)}, {7: 9})
    assert let_in_runs(tx, 7, [held_back(1), held_back(2)]) == {"target"}
    assert "run_changes.put_off" not in tx.verbs()


def test_where_there_is_no_room_all_are_put_off() -> None:
    tx = turns_tx({7: Counts(2, 0)}, {7: 2})
    assert let_in_runs(tx, 7, [held_back(1, NOW - HOUR)]) == set()
    assert "run_changes.move" not in tx.verbs()
    assert tx.args_of("run_changes.put_off") == [(7, HOUR + SECOND)]


def test_a_task_that_is_gone_lets_nobody_in() -> None:
    tx = turns_tx({}, {})
    assert let_in_runs(tx, 7, [held_back(1)]) == set()
    assert tx.verbs() == ["tasks.find"]


# Slots nobody was there for


@pytest.mark.parametrize("is_missed", [True, False])
def test_slots_that_passed_are_recorded_and_counted(is_missed: bool) -> None:
    tx = tx_of()
    misfire = Misfire(NOW, NOW + HOUR, 3, "SKIP")
    write_misfire(tx, a_task(), Firing((), None, None, 0, misfire=misfire, is_missed=is_missed))
    last = format_instant(NOW + HOUR)
    told = [
        Told(
            "events.append",
            (
                "TASK",
                7,
                "TASK_MISFIRED",
                {"first": SLOT, "last": last, "count": 3, "policy": "SKIP"},
            ),
            {},
        ),
        Told("rollups.add", ("misfires",), {"count": 3}),
        Told(
            "events.append",
            (
                "TASK",
                7,
                "TASK_MISSED",
                {"slot": last, "reason": "NO_INSTANCE_RAN", "alert": True},
            ),
            {},
        ),
    ]
    assert tx.told == told[: 3 if is_missed else 2]
