"""Explain as a pure function: facts in; verdict, reasons and words out. And no reason code without
words."""

from typing import Any

import pytest

from ksana.base.instant import DAY, HOUR, LATEST, MINUTE, SECOND, Instant, format_instant
from ksana.domain.explain import Fact, tell
from ksana.domain.schedule import Every, Once, make_cron
from ksana.domain.tasks.explain_runs import RunFacts, explain_run
from ksana.domain.tasks.explain_tasks import (
    SlotRun,
    TaskExplanation,
    TaskFacts,
    explain_task,
    slot_in_question,
)
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import Definition, Options, RetryPolicy, Run, Task

pytestmark = pytest.mark.spec("B1")


MADE = 1_767_225_600 * SECOND
"""2026-01-01T00:00:00Z"""


NOW = MADE + HOUR + 30 * SECOND


EVERY_MINUTE = Every(MINUTE, MADE, False)


def a_task(schedule: Any = EVERY_MINUTE, **members: Any) -> Task:
    options = members.pop("options", Options())
    definition = {
        name: members.pop(name) for name in list(members) if name in Definition.__struct_fields__
    }
    given: dict[str, Any] = {
        "id": 7,
        "job_id": "j",
        "dialect": "C",
        "status": "ENABLED",
        "version": 1,
        "created_at": MADE,
        "updated_at": MADE,
        "is_deleted": False,
        "next_slot_at": MADE + HOUR + MINUTE,
        "fire_at": MADE + HOUR + MINUTE,
        "runs_fired": 60,
        "last_run_at": None,
        "last_status": "",
        "last_error": "",
        **members,
    }
    return Task(definition=Definition("t", "", schedule, options=options, **definition), **given)


def a_run(**members: Any) -> Run:
    given: dict[str, Any] = {
        "id": 60,
        "uid": "a" * 32,
        "task_id": 7,
        "slot_at": MADE + HOUR,
        "scheduled_time": MADE + HOUR,
        "start_time": MADE + HOUR,
        "end_time": MADE + HOUR,
        "status": "SUCCESS",
        "attempt": 1,
        "trigger": "schedule",
        "exec_type": "SYNC",
        "is_counted": True,
        "token": 1,
        "response_truncated": False,
        "reason": "ANSWERED_2XX",
        "trace_id": "t",
        "attempts": "[]",
        "created_at": MADE + HOUR,
        "updated_at": MADE + HOUR,
        **members,
    }
    return Run(**{name: given.get(name) for name in Run.__struct_fields__})


def started(code: str = "BELOW_LIMIT", kind: str = "RUN_STARTED", event_id: int = 90) -> Fact:
    data = {
        "task_id": 7,
        "slot": format_instant(MADE + HOUR),
        "trigger": "schedule",
        "reason": code,
    }
    return Fact(event_id, MADE + HOUR, kind, data)


def ask(
    task: Task, at: Instant = NOW, now: Instant = NOW, run: SlotRun | None = None, **members: Any
) -> TaskExplanation:
    given: dict[str, Any] = {
        "before": (Fact(1, MADE, "TASK_CREATED", {}),),
        "after": (),
        "last_by_hand": None,
        "counts": Counts(),
        "outages": (),
        "is_anybody_alive": True,
        **members,
    }
    slot = slot_in_question(task, min(at, now))
    return explain_task(TaskFacts(task=task, at=at, now=now, slot=slot, slot_run=run, **given))


def codes(explained: Any) -> list[str]:
    return [one.code for one in explained.reasons]


def test_a_slot_that_ran_is_told_with_the_decision_that_was_recorded() -> None:
    explained = ask(a_task(), run=SlotRun(a_run(), started()))
    assert explained.verdict == "ran"
    assert codes(explained) == ["SLOT_RAN", "BELOW_LIMIT", "ANSWERED_2XX", "NOT_DUE"]
    assert explained.reasons[1].event_id == 90
    assert explained.reasons[3].words == "the next slot is at 2026-01-01T01:01:00Z, in 30s"
    assert explained.decision is not None
    assert (explained.decision.source, explained.decision.action) == ("recorded", "start")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("RUNNING", "running"),
        ("RETRYING", "running"),
        ("CALLBACK_PENDING", "running"),
        ("SCHEDULED", "waiting"),
        ("CANCELED", "canceled"),
        ("FAILED", "ran"),
        ("TIMEOUT", "ran"),
        ("FAILED_TIMEOUT", "ran"),
        ("SKIPPED", "skipped"),
    ],
)
def test_the_verdict_follows_the_state_of_the_slots_run(status: str, verdict: str) -> None:
    assert ask(a_task(), run=SlotRun(a_run(status=status), started())).verdict == verdict


def test_a_skipped_slot_names_the_reason_first() -> None:
    run = a_run(status="SKIPPED", reason="CONCURRENCY_LIMIT")
    explained = ask(a_task(), run=SlotRun(run, started("CONCURRENCY_LIMIT", "RUN_SKIPPED")))
    assert codes(explained)[0] == "CONCURRENCY_LIMIT"
    assert explained.decision is not None
    assert explained.decision.action == "skip"


def test_a_slot_before_the_first_is_not_due_and_says_how_long_it_takes() -> None:
    task = a_task(make_cron("0 0 * * *"), next_slot_at=MADE + DAY, fire_at=MADE + DAY)
    explained = ask(task)
    assert (explained.verdict, codes(explained)) == ("not_due", ["SET_AFTER_SLOT", "NOT_DUE"])
    assert explained.reasons[1].data["rest"] == "22h59m30s"
    assert explained.next_run_at == MADE + DAY
    assert explained.decision is not None
    assert (explained.decision.source, explained.decision.action) == ("replayed", "start")


def test_a_one_time_task_that_is_still_to_come_is_not_due() -> None:
    explained = ask(a_task(Once(NOW + HOUR), next_slot_at=NOW + HOUR, fire_at=NOW + HOUR))
    assert (explained.verdict, codes(explained)) == ("not_due", ["NOT_DUE"])


def test_a_disabled_task_says_since_when() -> None:
    off = Fact(5, MADE + MINUTE, "TASK_DISABLED", {"version": 2})
    task = a_task(status="DISABLED", fire_at=None)
    explained = ask(task, before=(off, Fact(1, MADE, "TASK_CREATED", {})))
    assert (explained.verdict, codes(explained)) == ("disabled", ["DISABLED"])
    assert explained.reasons[0].event_id == 5
    assert explained.next_run_at is None
    assert explained.decision is not None
    assert (explained.decision.action, explained.decision.reason) == ("none", "DISABLED")


def test_a_past_instant_is_judged_by_what_held_then() -> None:
    off, on = (
        Fact(5, MADE + 10 * MINUTE, "TASK_DISABLED", {}),
        Fact(6, MADE + 20 * MINUTE, "TASK_ENABLED", {}),
    )
    then = ask(
        a_task(),
        at=MADE + 15 * MINUTE,
        before=(off, Fact(1, MADE, "TASK_CREATED", {})),
        after=(on,),
    )
    assert (then.verdict, then.reasons[0].event_id) == ("disabled", 5)
    made_off = ask(
        a_task(), at=MADE + 15 * MINUTE, before=(Fact(1, MADE, "TASK_CREATED", {}),), after=(on,)
    )
    assert made_off.verdict == "disabled", "it was enabled only later"


def test_before_it_was_made_there_was_no_task() -> None:
    assert ask(a_task(), at=MADE - 1).verdict == "not_created"


@pytest.mark.parametrize("policy", ["SKIP", "FIRE_NOW", "CATCH_UP_LIMITED"])
def test_a_missed_slot_names_the_outage_and_the_policy(policy: str) -> None:
    data = {
        "first": format_instant(MADE + 5 * MINUTE),
        "last": format_instant(MADE + 20 * MINUTE),
        "count": 16,
        "policy": policy,
    }
    misfire = Fact(8, MADE + 21 * MINUTE, "TASK_MISFIRED", data)
    explained = ask(a_task(misfire_policy=policy), at=MADE + 10 * MINUTE, after=(misfire,))
    assert (explained.verdict, codes(explained)[0]) == ("missed", f"MISFIRE_{policy}")
    assert explained.reasons[0].data["count"] == 16
    assert explained.decision is not None
    assert explained.decision.action == "misfire"
    assert tell(misfire).startswith("16 slots were missed")


@pytest.mark.parametrize("slot", [MADE - HOUR, format_instant(MADE - HOUR)])
def test_a_one_time_slot_that_was_past_when_set_is_missed(slot: Any) -> None:
    missed = Fact(2, MADE, "TASK_MISSED", {"slot": slot, "reason": "PAST_WHEN_SET"})
    explained = ask(a_task(Once(MADE - HOUR), next_slot_at=None, fire_at=None), before=(missed,))
    assert (explained.verdict, codes(explained)) == ("missed", ["PAST_WHEN_SET", "NO_MORE_SLOTS"])


def test_a_due_slot_that_nobody_fires_says_that_nobody_is_there() -> None:
    due = MADE + HOUR
    explained = ask(a_task(next_slot_at=due, fire_at=due), is_anybody_alive=False)
    assert (explained.verdict, codes(explained)) == ("due", ["DUE", "NO_INSTANCE_ALIVE"])
    assert explained.reasons[0].data["late"] == "30s"


def test_a_slot_that_waits_for_its_jitter_says_so() -> None:
    schedule = Every(MINUTE, MADE, False, jitter_us=MINUTE - 1)
    explained = ask(a_task(schedule, next_slot_at=MADE + HOUR, fire_at=NOW + 20 * SECOND))
    assert (explained.verdict, codes(explained)) == ("not_due", ["WAITS_FOR_JITTER"])


def test_used_up_runs_end_a_task() -> None:
    task = a_task(options=Options(max_runs=3), runs_fired=3, next_slot_at=None, fire_at=None)
    explained = ask(task)
    assert (explained.verdict, codes(explained)) == ("ended", ["MAX_RUNS_REACHED"])
    assert "run 3 times" in explained.reasons[0].words
    assert explained.decision is None


def test_what_is_not_recorded_is_said_to_be_unknown() -> None:
    changed = Fact(9, NOW, "TASK_CHANGED", {"version": 2, "status": "ENABLED"})
    explained = ask(a_task(), at=MADE + 10 * MINUTE, after=(changed,))
    assert (explained.verdict, codes(explained)[:2]) == (
        "unknown",
        ["NOT_RECORDED", "CHANGED_SINCE"],
    )


@pytest.mark.parametrize(
    ("policy", "counts", "would"),
    [
        ("QUEUE", Counts(0, 0), "WOULD_START"),
        ("QUEUE", Counts(1, 2), "WOULD_WAIT"),
        ("SKIP", Counts(1, 0), "WOULD_SKIP"),
    ],
)
def test_an_instant_to_come_counts_its_slots_and_replays_the_decision(
    policy: str, counts: Counts, would: str
) -> None:
    explained = ask(a_task(concurrency_policy=policy), at=NOW + 10 * MINUTE, counts=counts)
    assert (explained.verdict, codes(explained)) == ("will_run", ["SLOTS_TO_COME", would])
    assert explained.reasons[0].data["count"] == 10
    assert explained.decision is not None
    assert (
        explained.decision.action
        == {"WOULD_START": "start", "WOULD_WAIT": "wait", "WOULD_SKIP": "skip"}[would]
    )


def test_an_instant_to_come_before_the_next_slot_or_without_one() -> None:
    assert ask(a_task(), at=NOW + SECOND).verdict == "not_due"
    assert ask(a_task(next_slot_at=None, fire_at=None), at=NOW + SECOND).verdict == "will_not_run"
    assert ask(a_task(status="DISABLED", fire_at=None), at=NOW + SECOND).verdict == "will_not_run"
    used_up = a_task(options=Options(max_runs=3), runs_fired=3, next_slot_at=None, fire_at=None)
    assert codes(ask(used_up, at=NOW + SECOND)) == ["MAX_RUNS_REACHED"]


@pytest.mark.parametrize(
    "schedule", [EVERY_MINUTE, make_cron("* * * * * *", "Europe/Paris"), Once(MADE + HOUR)]
)
def test_the_end_of_time_can_be_asked_about(schedule: Any) -> None:
    explained = ask(a_task(schedule), at=LATEST)
    assert (explained.verdict, explained.reasons[0].code) == ("will_run", "SLOTS_TO_COME")
    assert ask(a_task(schedule), at=0).verdict == "not_created"


def ask_run(run: Run, task: Task | None = None, **members: Any) -> Any:
    given: dict[str, Any] = {
        "events": (),
        "counts": Counts(1, 3),
        "ahead": 0,
        "is_ahead_cut": False,
        "holder_lease_until": None,
        **members,
    }
    return explain_run(RunFacts(run=run, task=task or a_task(), now=NOW, **given))


def test_a_waiting_run_knows_its_place_in_line() -> None:
    run = a_run(status="SCHEDULED", reason="QUEUED_BEHIND_ACTIVE", end_time=None)
    explained = ask_run(run, ahead=2, events=(started("QUEUED_BEHIND_ACTIVE", "RUN_SCHEDULED"),))
    assert codes(explained) == ["QUEUED_BEHIND_ACTIVE", "WAITS_FOR_TURN"]
    assert (explained.waits_for.what, explained.waits_for.position) == ("turn", 3)
    assert (
        explained.reasons[1].words == "it is number 3 in line: 1 of 1 runs of the task are active"
    )


def test_a_ready_run_waits_for_a_place_at_its_host() -> None:
    explained = ask_run(
        a_run(status="SCHEDULED", ready_host="h:80"), ahead=10_000, is_ahead_cut=True
    )
    assert (explained.waits_for.what, explained.waits_for.host) == ("place", "h:80")
    assert "10000 or more" in explained.reasons[-1].words


@pytest.mark.parametrize(
    ("lease", "code"), [(NOW + SECOND, "HELD"), (NOW, "HOLDER_LOST"), (None, "HOLDER_LOST")]
)
def test_a_running_run_names_its_holder_and_whether_it_lives(
    lease: Instant | None, code: str
) -> None:
    explained = ask_run(
        a_run(status="RUNNING", held_by="i1", end_time=None), holder_lease_until=lease
    )
    assert codes(explained)[-1] == code
    assert explained.waits_for.instance == "i1"


def test_a_retry_and_a_callback_say_until_when() -> None:
    retrying = ask_run(
        a_run(status="RETRYING", reason="RETRY_LEFT", next_retry_time=NOW + 5 * SECOND)
    )
    assert (codes(retrying), retrying.waits_for.what) == (
        ["RETRY_LEFT", "WAITS_FOR_RETRY"],
        "retry",
    )
    assert retrying.reasons[1].data["rest"] == "5s"
    pending = ask_run(
        a_run(status="CALLBACK_PENDING", reason="ACCEPTED", callback_deadline=NOW + MINUTE)
    )
    assert (codes(pending), pending.waits_for.what) == (
        ["ACCEPTED", "WAITS_FOR_CALLBACK"],
        "callback",
    )
    late = ask_run(a_run(status="CALLBACK_PENDING", callback_deadline=NOW - MINUTE))
    assert codes(late)[-1] == "OVERDUE"
    assert codes(ask_run(a_run(status="RETRYING", next_retry_time=NOW)))[-1] == "OVERDUE"


def test_a_finished_run_waits_for_nothing_and_sums_up_its_attempts() -> None:
    attempts = (
        '[{"attempt":1,"status":"RETRYING","response_code":503,"error":"HTTP 503","timing":{}},'
    )
    attempts += (
        '{"attempt":2,"status":"FAILED","response_code":500,"error":"HTTP 500","timing":{}}]'
    )
    end = Fact(91, NOW, "RUN_FAILED", {"reason": "RETRIES_USED_UP", "error": "HTTP 500"})
    run = a_run(status="FAILED", reason="RETRIES_USED_UP", attempt=2, attempts=attempts)
    explained = ask_run(run, a_task(retry=RetryPolicy(max_retries=1)), events=(started(), end))
    assert explained.waits_for is None
    assert codes(explained) == ["RETRIES_USED_UP", "BELOW_LIMIT"]
    assert (
        explained.attempts["words"] == "2 of 2 attempts are over; the last one ended with: HTTP 500"
    )
    assert explained.attempts["list"][0] == {
        "attempt": 1,
        "status": "RETRYING",
        "response_code": 503,
        "error": "HTTP 503",
    }
    assert (
        explained.timeline[1].words
        == "the run failed: every try the retry policy allows was made (HTTP 500)"
    )


def test_a_run_of_a_deleted_task_says_so() -> None:
    explained = ask_run(
        a_run(status="RUNNING", held_by="i"),
        a_task(is_deleted=True),
        holder_lease_until=NOW + SECOND,
    )
    assert codes(explained)[-1] == "TASK_DELETED"
