"""Explanations of runs that a backfill holds back, of attempts one after the other, and of a slot
before the schedule of a task that is disabled by now."""

from typing import Any

import msgspec
import pytest

from ksana.domain.tasks.call_records import CallEntry, write_call
from ksana.domain.tasks.explain_runs import Waiting, explain_run
from ksana.domain.tasks.explain_tasks import replay
from tests.unit.task_ground import NOW
from tests.unit.test_explain_decided import (
    SOON,
    TEN,
    at,
    fact,
    run_facts,
    task_facts,
    verdict,
    waits,
)

pytestmark = pytest.mark.spec("B1")


def test_a_run_of_a_backfill_says_when_its_turn_is() -> None:
    held_back: dict[str, Any] = {
        "status": "SCHEDULED",
        "trigger": "backfill",
        "is_counted": False,
        "held_by": None,
    }
    told = waits({**held_back, "wake_at": SOON})
    assert told == (Waiting("turn", until=at(SOON)), "WAITS_FOR_BACKFILL", {"at": at(SOON)})
    assert waits(held_back)[2] == {"at": at(NOW)}


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        (["first", "last"], "2 of 3 attempts are over; the last one ended with: last"),
        ([None, "last"], "2 of 3 attempts are over; the last one ended with: last"),
        (["first", None], "2 of 3 attempts are over"),
    ],
)
def test_of_several_attempts_the_error_of_the_last_is_told(
    errors: list[str | None], words: str
) -> None:
    attempts = msgspec.json.encode([{"error": error} for error in errors]).decode()
    assert explain_run(run_facts({"attempts": attempts})).attempts["words"] == words


def test_attempts_that_were_calls_are_summed_up_beside_those_that_were_lost() -> None:
    lost = {"attempt": 1, "started_at": None, "status": "LOST", "error": "gone", "instance": "one"}
    call = CallEntry(2, 0, 1_500, "FAILED", 404, "HTTP 404", "two", 2, 1, 2, 3, 4, 5)
    attempts = f"[{msgspec.json.encode(lost).decode()},{write_call(call).decode()}]"
    explained = explain_run(run_facts({"attempts": attempts})).attempts
    assert explained["words"] == "2 of 3 attempts are over; the last one ended with: HTTP 404"
    assert explained["list"] == [
        lost,
        {
            "attempt": 2,
            "started_at": "1970-01-01T00:00:00Z",
            "ended_at": "1970-01-01T00:00:00.0015Z",
            "status": "FAILED",
            "response_code": 404,
            "error": "HTTP 404",
            "instance": "two",
        },
    ]


def test_a_slot_before_the_schedule_of_a_task_that_is_disabled_by_now() -> None:
    disabled = {"status": "DISABLED", "created_at": NOW, "next_slot_at": None, "fire_at": None}
    told = verdict(disabled, after=(fact(9, "TASK_DISABLED", NOW + 5),))
    assert (told[0], told[1][0]) == ("disabled", "SET_AFTER_SLOT")


def test_of_several_slots_that_are_due_the_first_is_decided() -> None:
    decision = replay(task_facts({"next_slot_at": NOW, "fire_at": NOW}, now=NOW + 2 * TEN))
    assert decision is not None
    assert decision.slot == at(NOW)
