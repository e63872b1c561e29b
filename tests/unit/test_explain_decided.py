"""Explanations of tasks and runs as whole values: verdict, codes, facts, and the decision."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import SECOND, format_instant
from ksana.domain.explain import Fact, Reason, span_words
from ksana.domain.handover import HandedEnd, HandedJob, job_id_of
from ksana.domain.tasks.explain_runs import RunFacts, Waiting, explain_run
from ksana.domain.tasks.explain_tasks import (
    Decision,
    SlotRun,
    TaskFacts,
    explain_task,
    replay,
    slot_in_question,
)
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import NODE_PLACE, RetryPolicy
from tests.unit.task_ground import NOW, a_run, a_task

pytestmark = pytest.mark.spec("B1")

TEN = 10 * SECOND
SOON = NOW + TEN


def at(instant: int | None) -> str | None:
    return None if instant is None else format_instant(instant)


def fact(number: int, kind: str, when: int = NOW, **data: Any) -> Fact:
    return Fact(id=number, at=when, type=kind, data=data)


# Runs


def run_facts(run: dict[str, Any] | None = None, **members: Any) -> RunFacts:
    given: dict[str, Any] = {
        "task": a_task(retry=RetryPolicy(max_retries=2), max_concurrency=4),
        "now": NOW,
        "events": (),
        "counts": Counts(2, 3),
        "ahead": 5,
        "is_ahead_cut": False,
        "holder_lease_until": SOON,
    }
    return RunFacts(run=a_run(**{"reason": None, **(run or {})}), **given | members)


def waits(
    run: dict[str, Any] | None = None, **members: Any
) -> tuple[Waiting | None, str, dict[str, Any]]:
    told = explain_run(run_facts(run, **members))
    return told.waits_for, told.reasons[-1].code, told.reasons[-1].data


HELD = {"instance": "one", "attempt": 2, "since": at(NOW + 1), "lease_until": at(SOON)}
ANSWER = Waiting("answer", instance="one", lease_until=at(SOON))


def test_a_held_run_says_who_holds_it_and_until_when() -> None:
    assert waits() == (ANSWER, "HELD", HELD)
    assert waits(holder_lease_until=NOW)[1] == "HOLDER_LOST"
    lost = waits({"held_by": ""}, holder_lease_until=None)
    assert lost == (
        Waiting("answer", instance=""),
        "HOLDER_LOST",
        {"instance": "?", "lease_until": None},
    )
    uid = "0" * 32
    job_id = job_id_of(uid, 2)
    assert waits({"host": NODE_PLACE, "uid": uid}) == (
        Waiting("job", instance="one", lease_until=at(SOON), job_id=job_id),
        "WAITS_FOR_NODE_JOB",
        HELD | {"job_id": job_id},
    )


@pytest.mark.parametrize(
    ("status", "member", "what", "late", "code"),
    [
        ("CALLBACK_PENDING", "callback_deadline", "callback", "the callback", "WAITS_FOR_CALLBACK"),
        ("RETRYING", "next_retry_time", "retry", "the next attempt", "WAITS_FOR_RETRY"),
    ],
)
def test_a_run_that_waits_for_an_instant_says_how_long(
    status: str, member: str, what: Any, late: str, code: str
) -> None:
    for given in ({member: SOON}, {"wake_at": SOON}):
        found = waits({"status": status, "held_by": None, **given})
        assert found[:2] == (Waiting(what, until=at(SOON)), code)
        assert found[2]["rest"] == span_words(TEN)
        assert at(SOON) in found[2].values()
    over = waits({"status": status, "held_by": None, member: NOW})
    assert over == (Waiting(what, until=at(NOW)), "OVERDUE", {"what": late, "at": at(NOW)})
    assert waits({"status": status, "held_by": None})[1] == "OVERDUE"


def test_a_run_that_waits_for_a_place_or_its_turn_says_how_many_are_before_it() -> None:
    ready = {"status": "RETRYING", "held_by": None, "ready_host": "h"}
    assert waits(ready) == (
        Waiting("place", host="h", position=6),
        "WAITS_FOR_PLACE",
        {"host": "h", "ahead": 5},
    )
    assert waits(ready, is_ahead_cut=True)[2]["ahead"] == "5 or more"
    turn = {"status": "SCHEDULED", "held_by": None}
    assert waits(turn) == (
        Waiting("turn", position=6),
        "WAITS_FOR_TURN",
        {"position": 6, "active": 2, "max_concurrency": 4},
    )
    assert waits(turn, task=None)[2]["max_concurrency"] == 1


def test_a_run_that_waits_for_a_job_says_what_became_of_it() -> None:
    uid = "0" * 32
    job_id = job_id_of(uid, 2)
    run = {"held_by": None, "wake_at": SOON, "uid": uid}
    job = HandedJob(job_id, "r", "QUEUED", "{}", NOW)
    lasts = {"deadline": at(SOON), "rest": span_words(TEN)}
    waiting = Waiting("job", until=at(SOON), job_id=job_id, state="QUEUED")
    about = {"job_id": job_id, "state": "QUEUED", **lasts}
    assert waits(run, job=job) == (waiting, "WAITS_FOR_JOB", about)
    ended = msgspec.structs.replace(job, end=HandedEnd("done"))
    assert waits(run, job=ended) == (waiting, "JOB_JUST_ENDED", about)
    gone = Waiting("job", until=at(SOON), job_id=job_id)
    assert waits(run) == (gone, "JOB_GONE", {"job_id": job_id, "deadline": at(SOON)})
    over = waits(run | {"wake_at": NOW}, job=job)
    assert over[1:] == ("OVERDUE", {"what": "the end of its job", "at": at(NOW)})
    assert waits(run | {"wake_at": None}, job=job)[1] == "OVERDUE"


def test_the_reason_of_a_run_is_told_from_its_event_and_before_it_how_it_began() -> None:
    events = (
        fact(1, "RUN_SCHEDULED", reason="BELOW_LIMIT"),
        fact(2, "RUN_FAILED", reason="NO_RETRIES", x=1),
        fact(3, "RUN_RESULT_REFUSED", reason="NO_RETRIES"),
        fact(4, "OTHER", reason="NO_RETRIES"),
    )
    ended = {"status": "FAILED", "reason": "NO_RETRIES", "error_message": "e"}
    told = explain_run(run_facts(ended, events=events))
    assert [(one.code, one.event_id, one.data) for one in told.reasons] == [
        ("NO_RETRIES", 2, {"reason": "NO_RETRIES", "x": 1}),
        ("BELOW_LIMIT", 1, {"reason": "BELOW_LIMIT"}),
    ]
    assert told.waits_for is None
    unrecorded = explain_run(run_facts(ended))
    assert [(one.code, one.event_id, one.data) for one in unrecorded.reasons] == [
        ("NO_RETRIES", None, {"status": "FAILED", "error": "e"})
    ]
    only = explain_run(run_facts(ended, events=events[1:2]))
    assert len(only.reasons) == 1, "it is told once"
    odd = explain_run(run_facts(ended, events=(fact(1, "RUN_SCHEDULED"), events[1])))
    assert len(odd.reasons) == 1
    moments = [(one.at, one.event_id, one.type, one.reason) for one in told.timeline[:2]]
    assert moments == [
        (at(NOW), 1, "RUN_SCHEDULED", "BELOW_LIMIT"),
        (at(NOW), 2, "RUN_FAILED", "NO_RETRIES"),
    ]
    assert odd.timeline[0].reason is None
    assert told.timeline[1].data == {"reason": "NO_RETRIES", "x": 1}
    deleted = explain_run(run_facts(task=a_task(is_deleted=True)))
    assert deleted.reasons[-1].code == "TASK_DELETED"
    assert explain_run(run_facts()).reasons[-1].code == "HELD"


def test_the_attempts_of_a_run_are_summed_up() -> None:
    entry = {
        "attempt": 1,
        "started_at": "a",
        "ended_at": "b",
        "status": "FAILED",
        "response_code": 500,
        "error": "e",
        "instance": "one",
        "job_id": "j",
    }
    attempts = msgspec.json.encode([entry | {"timing": 1}]).decode()
    assert explain_run(run_facts({"attempts": attempts})).attempts == {
        "current": 2,
        "ended": 1,
        "allowed": 3,
        "words": "1 of 3 attempts are over; the last one ended with: e",
        "list": [entry],
    }
    none = explain_run(run_facts({"attempts": ""}, task=None)).attempts
    assert (none["ended"], none["allowed"], none["words"]) == (0, None, "0 attempts are over")


# Tasks


def task_facts(task: dict[str, Any] | None = None, **members: Any) -> TaskFacts:
    given: dict[str, Any] = {
        "at": NOW + 1,
        "now": NOW + 1,
        "before": (),
        "after": (),
        "slot": NOW,
        "slot_run": None,
        "last_by_hand": None,
        "counts": Counts(),
        "outages": (),
        "is_anybody_alive": True,
    }
    armed = {"next_slot_at": SOON, "fire_at": SOON, **(task or {})}
    return TaskFacts(task=a_task(**armed), **given | members)


def verdict(task: dict[str, Any] | None = None, **members: Any) -> tuple[str, list[str]]:
    told = explain_task(task_facts(task, **members))
    return told.verdict, [one.code for one in told.reasons]


def find(code: str, task: dict[str, Any] | None = None, **members: Any) -> Reason:
    told = explain_task(task_facts(task, **members))
    return next(one for one in told.reasons if one.code == code)


def test_before_a_task_was_made_and_after_it_was_deleted() -> None:
    made = {"created_at": NOW}
    assert verdict(made, at=NOW - 1) == ("not_created", ["NOT_CREATED_YET"])
    assert verdict(made, at=NOW)[0] != "not_created"
    assert slot_in_question(a_task(created_at=NOW), NOW) == NOW
    assert slot_in_question(a_task(created_at=NOW), NOW - 1) is None
    gone = {"is_deleted": True, "updated_at": NOW}
    before = (fact(9, "OTHER"), fact(4, "TASK_DELETED"))
    told = explain_task(task_facts(gone, at=NOW, before=before))
    assert (told.verdict, told.next_run_at, told.decision) == ("deleted", None, None)
    assert (told.reasons[0].code, told.reasons[0].event_id) == ("DELETED", 4)
    assert told.reasons[0].data == {"at": at(NOW)}
    assert find("DELETED", gone).event_id is None
    assert verdict(gone, at=NOW - 1)[0] != "deleted"


def test_the_run_of_a_slot_says_what_became_of_it() -> None:
    first = fact(3, "RUN_SKIPPED", slot="s", reason="CONCURRENCY_LIMIT")
    skipped = a_run(status="SKIPPED", reason="CONCURRENCY_LIMIT")
    told = explain_task(task_facts(slot_run=SlotRun(skipped, first)))
    assert told.verdict == "skipped"
    assert [one.code for one in told.reasons[:2]] == ["CONCURRENCY_LIMIT", "SLOT_RAN"]
    assert told.decision == Decision("recorded", "s", "skip", "CONCURRENCY_LIMIT", first.data)
    begun = fact(3, "RUN_STARTED", slot="s", reason="QUEUED_BEHIND_ACTIVE")
    ran = a_run(status="SUCCESS", reason="ANSWERED_2XX", response_code=200)
    told = explain_task(task_facts(slot_run=SlotRun(ran, begun)))
    assert told.decision is not None
    assert (told.decision.source, told.decision.action) == ("recorded", "wait")
    [_, why, end, *_] = told.reasons
    assert (why.code, why.event_id) == ("QUEUED_BEHIND_ACTIVE", 3)
    assert end.data == {"run_id": 60, "attempt": 2, "response_code": 200}
    odd = fact(3, "RUN_STARTED", slot=1, reason="PARALLEL")
    replayed = explain_task(task_facts(slot_run=SlotRun(ran, odd))).decision
    assert replayed is not None
    assert replayed.source == "replayed"
    silent = explain_task(task_facts(slot_run=SlotRun(a_run(reason=None), fact(3, "RUN_STARTED"))))
    assert [one.code for one in silent.reasons[:1]] == ["SLOT_RAN"]
    assert None not in [one.code for one in silent.reasons]


def test_a_misfire_around_a_slot_is_told_with_it_and_once() -> None:
    missed = fact(7, "TASK_MISFIRED", first=at(NOW - TEN), last=at(NOW), policy="FIRE_NOW", count=2)
    for place in ({"before": (fact(8, "OTHER"), missed)}, {"after": (missed,)}):
        told = explain_task(task_facts(**place))
        assert (told.verdict, told.reasons[0].code) == ("missed", "MISFIRE_FIRE_NOW")
        assert told.decision == Decision(
            "recorded", str(at(NOW)), "misfire", "MISFIRE_FIRE_NOW", missed.data
        )
        run = explain_task(task_facts(slot_run=SlotRun(a_run(reason=None), None), **place))
        assert [one.code for one in run.reasons].count("MISFIRE_FIRE_NOW") == 1
    same = SlotRun(a_run(reason=None), fact(7, "RUN_STARTED", reason="MISFIRE_FIRE_NOW"))
    told = explain_task(task_facts(slot_run=same, before=(missed,)))
    assert [one.event_id for one in told.reasons].count(7) == 1
    assert verdict(slot=NOW - TEN, before=(missed,))[0] == "missed"
    assert verdict(slot=NOW - TEN - 1, before=(missed,))[0] != "missed"
    assert verdict(before=(fact(7, "TASK_MISFIRED", first=at(NOW)),))[0] != "missed"
    lost = fact(5, "TASK_MISSED", slot=at(NOW))
    assert verdict(before=(lost,))[:1] == ("missed",)
    assert find("NO_INSTANCE_RAN", before=(lost,)).event_id == 5
    assert verdict(slot=None, before=(lost, missed))[0] != "missed"


@pytest.mark.parametrize(
    ("before", "after", "status", "is_enabled"),
    [
        ((fact(1, "TASK_DISABLED", NOW),), (), "ENABLED", False),
        ((fact(1, "TASK_DISABLED", NOW + 1),), (), "ENABLED", True),
        ((fact(1, "TASK_ENABLED", NOW + 1),), (), "ENABLED", False),
        ((fact(1, "TASK_ENABLED", NOW - 5),), (), "DISABLED", True),
        ((fact(1, "TASK_CHANGED", NOW, status="DISABLED"),), (), "ENABLED", False),
        ((fact(1, "TASK_CHANGED", NOW, status=1),), (), "ENABLED", True),
        ((fact(1, "TASK_CHANGED", NOW),), (), "DISABLED", False),
        ((), (fact(1, "TASK_DISABLED", NOW + 9),), "DISABLED", True),
        ((), (fact(1, "TASK_ENABLED", NOW + 9),), "ENABLED", False),
        ((), (fact(1, "TASK_CHANGED", status="X"), fact(2, "TASK_ENABLED")), "ENABLED", True),
        ((), (fact(1, "OTHER"), fact(2, "TASK_ENABLED", NOW + 9)), "ENABLED", False),
    ],
)
def test_whether_a_task_was_enabled_is_told_by_the_nearest_event(
    before: tuple[Fact, ...], after: tuple[Fact, ...], status: str, is_enabled: bool
) -> None:
    found = verdict({"status": status}, before=before, after=after)
    assert (found[0] != "disabled") is is_enabled
    events: dict[str, Any] = {"before": before, "after": after}
    without = verdict({"status": status}, slot=None, at=NOW, **events)
    assert (without[0] != "disabled") is is_enabled


def test_a_disabled_task_says_since_when() -> None:
    told = find("DISABLED", {"status": "DISABLED"}, before=(fact(4, "TASK_DISABLED", NOW - 5),))
    assert (told.event_id, told.data) == (4, {"since": at(NOW - 5)})
    assert find("DISABLED", {"status": "DISABLED"}).data == {}


def test_a_slot_without_a_record_is_due_or_was_before_the_schedule_or_is_not_known() -> None:
    due = {"next_slot_at": NOW, "fire_at": NOW}
    assert verdict(due) == ("due", ["DUE"])
    assert find("DUE", due).data == {"slot": at(NOW), "late": span_words(1)}
    assert verdict(due, is_anybody_alive=False)[1] == ["DUE", "NO_INSTANCE_ALIVE"]
    jitter = find("WAITS_FOR_JITTER", {"next_slot_at": NOW, "fire_at": NOW + 1 + TEN})
    assert jitter.data["rest"] == span_words(TEN)
    assert verdict({"next_slot_at": NOW, "fire_at": NOW + 1})[0] == "due"
    made = find("SET_AFTER_SLOT", before=(fact(1, "TASK_CHANGED", NOW, schedule={}),))
    assert made.data == {"slot": at(NOW), "set_at": at(NOW)}
    assert verdict({"created_at": NOW})[1][0] == "SET_AFTER_SLOT"
    used = verdict({"max_runs": 1, "runs_fired": 1, "next_slot_at": None})
    assert used[0] == "ended"
    assert verdict() == ("unknown", ["NOT_RECORDED", "NOT_DUE"])
    later = (fact(6, "TASK_CHANGED", NOW + 9),)
    assert find("CHANGED_SINCE", after=later).event_id == 6
    assert verdict(after=later, schedule=a_task().definition.schedule)[1][0] == "NOT_RECORDED"
    assert "CHANGED_SINCE" not in verdict(after=later, schedule=a_task().definition.schedule)[1]
    assert verdict(slot=None)[0] == "not_due"
    assert verdict({"next_slot_at": None}, slot=None)[0] == "ended"


def test_what_comes_next_is_told() -> None:
    assert find("NOT_DUE").data == {"slot": at(SOON), "rest": span_words(TEN - 1)}
    past = find("NEXT_SLOT", at=NOW, now=NOW + TEN)
    assert past.data == {"slot": at(SOON)}
    assert "NO_MORE_SLOTS" in verdict({"next_slot_at": None, "fire_at": None})[1]
    now_due = verdict({"next_slot_at": NOW + 1, "fire_at": NOW + 1}, slot=NOW)
    assert "NOT_DUE" not in now_due[1]
    by_hand = a_run(id=99, created_at=NOW - 3, status="SUCCESS")
    assert find("RUN_BY_HAND", last_by_hand=by_hand).data == {
        "run_id": 99,
        "at": at(NOW - 3),
        "status": "SUCCESS",
    }


def test_of_an_instant_to_come_it_is_told_what_will_be() -> None:
    ahead: dict[str, Any] = {"at": SOON + 2 * TEN}
    assert verdict(**ahead) == ("will_run", ["SLOTS_TO_COME", "WOULD_START"])
    assert find("SLOTS_TO_COME", **ahead).data == {"count": 3, "slot": at(SOON)}
    few = {"max_runs": 5, "runs_fired": 3}
    assert find("SLOTS_TO_COME", few, **ahead).data["count"] == 2
    assert verdict({"max_runs": 5, "runs_fired": 5}, **ahead)[0] == "will_not_run"
    none = verdict({"next_slot_at": None, "fire_at": None}, **ahead)
    assert none == ("will_not_run", ["NO_MORE_SLOTS"])
    assert verdict({"status": "DISABLED"}, **ahead)[0] == "will_not_run"
    assert verdict(at=SOON - 1) == ("not_due", ["NOT_DUE"])
    assert find("NOT_DUE", at=SOON - 1).data["rest"] == span_words(TEN - 1)
    assert verdict(at=SOON)[0] == "will_run"


def test_a_decision_is_replayed_from_everything_it_rests_on() -> None:
    task = {"max_concurrency": 4, "max_queued": 9, "runs_fired": 1, "max_runs": 7}
    facts = task_facts(task, counts=Counts(2, 3))
    inputs = {
        "at": at(SOON),
        "status": "ENABLED",
        "active": 2,
        "waiting": 3,
        "concurrency_policy": "QUEUE",
        "max_concurrency": 4,
        "max_queued": 9,
        "misfire_policy": "FIRE_NOW",
        "runs_fired": 1,
        "max_runs": 7,
    }
    slot = str(at(SOON))
    assert replay(facts) == Decision("replayed", slot, "wait", "QUEUED_BEHIND_ACTIVE", inputs)
    off = replay(task_facts({"fire_at": None, "status": "DISABLED"}))
    assert off is not None
    assert (off.source, off.slot, off.action, off.reason) == ("replayed", slot, "none", "DISABLED")
    used = replay(task_facts({"max_runs": 1, "runs_fired": 1}))
    assert used is not None
    assert (used.action, used.reason) == ("none", "MAX_RUNS_REACHED")
    skip = {"misfire_policy": "SKIP", "next_slot_at": NOW, "fire_at": NOW}
    missed = replay(task_facts(skip, now=NOW + 1, outages=((NOW - 1, NOW),)))
    assert missed is not None
    assert (missed.source, missed.slot) == ("replayed", str(at(NOW)))
    assert (missed.action, missed.reason) == ("misfire", "MISFIRE_SKIP")
    assert replay(task_facts({"next_slot_at": None})) is None
