"""What the queue decides and records, without a store: each event as its kind says, each change
as the lifecycle allows."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.errors import ConflictError
from ksana.base.ids import NO_TOKEN, read_token, show_token
from ksana.domain import lifecycle
from ksana.domain.events import EventKind
from ksana.domain.leases import ANYBODY, Proof, judge_holder
from ksana.domain.queue import admission, attempt_ends, changes
from ksana.domain.queue.attempt_ends import (
    EndDecision,
    Release,
    after_release,
    end_attempt,
    expire_lease,
)
from ksana.domain.queue.changes import JobChange, count_changes, group_changes
from ksana.domain.queue.classes import Wants, class_of, rivals_of
from ksana.domain.queue.effects import METRICS, wake_after
from ksana.domain.queue.events import KINDS
from ksana.domain.queue.jobs import (
    CLAIM_HELD,
    FINAL_OF,
    DueJob,
    ExpiredClaim,
    Job,
    LeaseWithJob,
    NewJob,
    ReadyJob,
)
from ksana.domain.queue.turns import Turns
from ksana.engine.queue.job_writer import write_changes
from ksana.service.queue.stats import _COUNTS, _GAUGES, _SPANS

NOW = 1_767_225_600_000_000
BY_NAME: dict[tuple[str, str], EventKind] = {(kind.entity, kind.name): kind for kind in KINDS}


class NothingWaits:
    """Numbers of turns in an empty queue."""

    def head_turn(self, urgency: int) -> int | None:
        return None

    def tail_turn(self, urgency: int) -> int | None:
        return None

    def key_turn(self, urgency: int, fairness_key: str) -> int | None:
        return None


def turns() -> Turns:
    return Turns(NothingWaits())


def a_job(**more: Any) -> Job:
    kind = class_of("a", "t", 3, ())
    new = NewJob("j1", "NORMAL", kind, "{}", "{}", None, 2, None, None)
    job = changes.submit_job(new, NOW, turns())
    held = {"state": "CLAIMED", "position": 2, "claimed_by": 'w"1', "claim_token": 7, "claims": 1}
    return msgspec.structs.replace(job, seq=1, **{**held, **more})


def held(**more: Any) -> LeaseWithJob:
    values: dict[str, Any] = {
        "lease_id": "l1",
        "job_id": "j1",
        "addon_id": "a",
        "worker_id": "w",
        "cost_units": 3,
        "ttl_sec": 30,
        "lease_state": "ACTIVE",
        "lease_token": 9,
        "release_digest": None,
        "granted_at": NOW - 5,
        "last_heartbeat_at": NOW - 3,
        "expires_at": NOW + 27,
        "is_live": 1,
        "seq": 1,
        "job_state": "RUNNING",
        "attempts": 1,
        "max_attempts": 1,
        "cancel_requested": 0,
        "urgency": 2,
        "claims": 1,
        **more,
    }
    return LeaseWithJob(**values)


def every_change() -> list[JobChange]:
    ready = ReadyJob(
        1, "j1", "a", "t", "NORMAL", 3, "{}", "{}", 0, 2, NOW, None, None, None, None, None, None,
        None, 2, 5, 0, NOW, 0,
    )  # fmt: skip
    denial = dict.fromkeys(
        ("code", "reason", "used", "requested", "capacity", "reserved", "position"), 1
    )
    made = [
        *changes.promote_jobs([DueJob(1, "j1", 2, None)], turns()),
        *changes.claim_jobs([ready], [7], 'w"1', NOW),
        *changes.start_jobs([ready], ["l1"], [7], 'w"1', 30, NOW),
    ]
    for state in sorted(CLAIM_HELD):
        job = a_job(state=state)
        made += [
            admission.grant_lease(job, "l1", 8, 30, NOW),
            admission.deny_lease(job, NOW, NOW, denial),
            changes.cancel_job(job, "why"),
            attempt_ends.take_back(ExpiredClaim(1, "j1", state, "w", 7, 0, 2), turns()),
        ]
        for to in sorted(CLAIM_HELD):
            if changes.can_report(state, to):
                made.append(changes.report_state(job, to, 0.5, 'a "note"', NOW))
    for status in ("SUCCEEDED", "FAILED", "CANCELED", "TIMEOUT"):
        for attempts in (1, 2):
            one = held(attempts=attempts, max_attempts=2)
            release = Release("l1", status, error=None if attempts == 1 else 'an "error"')
            decision = after_release(one, status)
            made.append(end_attempt(one, decision, release, "digest", NOW, turns()))
            made.append(expire_lease(one, NOW, turns()))
    return made


@pytest.mark.spec("X11")
def test_every_event_of_a_change_is_as_its_kind_says() -> None:
    seen = set()
    for change in every_change():
        if not change.events:
            continue
        names, text = change.events
        facts = msgspec.json.decode(text)
        assert [fact[0] for fact in facts] == list(names)
        for name, members, *named in facts:
            entity = named[0] if named else "JOB"
            assert named in ([], ["JOB", "j1"], ["LEASE", "l1"], ["LEASE", "l1", "j1"])
            # Beside the events of other jobs each must say whose it is.
            assert change.move not in changes.DATED or named[-1:] == ["j1"]
            assert BY_NAME[entity, name].allows(members), (name, members)
            seen.add(name)
    others = {"JOB_SUBMITTED", "JOB_CANCEL_REQUESTED", "CAPACITY_RECOUNTED"}
    others |= {"JOB_REPLAYED", "JOB_REPLAYS", "JOB_DISMISSED"}
    assert seen | others == {kind.name for kind in KINDS}


@pytest.mark.spec("X12")
def test_every_change_is_a_move_of_the_lifecycle() -> None:
    moves = {(change.old, change.new) for change in every_change() if change.old != change.new}
    for old, new in moves:
        lifecycle.JOB.require(old, new)
    changes.cancel_job(a_job(state="QUEUED"), None)
    assert moves | {("QUEUED", "CANCELED")} == lifecycle.JOB.pairs


@pytest.mark.spec("X12")
def test_the_writer_refuses_a_move_that_is_in_no_table() -> None:
    for old, new in (("DONE", "QUEUED"), ("QUEUED", "DONE"), ("RUNNING", "CLAIMED")):
        with pytest.raises(ConflictError) as refused:
            write_changes(None, [JobChange("finish", 1, "j", old, new)])  # type: ignore[arg-type]
        assert refused.value.code == "ILLEGAL_TRANSITION"
        assert old in refused.value.message and new in refused.value.message
    with pytest.raises(ConflictError):
        write_changes(None, [JobChange("report", 1, "j", "DONE", "DONE")])  # type: ignore[arg-type]


@pytest.mark.spec("X12")
def test_a_move_taken_out_of_the_lifecycle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for change in every_change():
        if change.old == change.new:
            continue
        pairs = lifecycle.JOB.pairs - {(change.old, change.new)}
        before = lifecycle.JOB.pairs
        msgspec.structs.force_setattr(lifecycle.JOB, "pairs", pairs)
        try:
            with pytest.raises(ConflictError):
                write_changes(None, [change])  # type: ignore[arg-type]
        finally:
            msgspec.structs.force_setattr(lifecycle.JOB, "pairs", before)


@pytest.mark.spec("Q15")
def test_what_is_counted_follows_from_the_states() -> None:
    made = every_change()
    counts = count_changes(group_changes(made), NOW)
    assert counts.queued == sum((c.new == "QUEUED") - (c.old == "QUEUED") for c in made)
    assert counts.running == sum((c.new == "RUNNING") - (c.old == "RUNNING") for c in made)
    assert counts.leases == counts.running, "a job runs under a lease, and under one alone"
    assert counts.units == 3 * counts.leases
    assert sum(counts.ended.values()) == sum(c.new in FINAL_OF for c in made)
    assert counts.expired == sum(c.lease_end == "EXPIRED" for c in made)
    assert set(METRICS) >= {*_GAUGES.values(), *_COUNTS.values(), *_SPANS.values()}


@pytest.mark.spec("Q2")
def test_changes_wake_whom_they_concern() -> None:
    one = held(max_attempts=2)
    again = end_attempt(one, EndDecision("QUEUED", 5), Release("l1", "FAILED"), "d", NOW, turns())
    wake = wake_after([again])
    assert (wake.has_ready, wake.freed_units, wake.next_due) == (False, again.cost_units, NOW + 5)
    wake = wake_after([expire_lease(one, NOW, turns())])
    assert (wake.has_ready, wake.freed_units, wake.next_due) == (True, again.cost_units, None)


@pytest.mark.spec("Q11")
def test_a_failure_is_final_where_its_worker_says_so() -> None:
    one = held(max_attempts=5)
    assert after_release(one, "FAILED").state == "QUEUED"
    assert after_release(one, "FAILED", may_retry=False).state == "FAILED"
    assert after_release(held(max_attempts=5, cancel_requested=1), "FAILED").state == "CANCELED"


@pytest.mark.spec("X12")
def test_all_that_is_shown_must_fit_and_nothing_is_enough_only_once() -> None:
    def told(proof: Proof, claims: int = 2) -> str | None:
        return judge_holder(proof, 7, "w", claims)

    assert told(Proof(7)) is told(Proof(worker_id="w")) is told(Proof(7, "w")) is None
    assert told(Proof(8)) == told(Proof(8, "w")) == told(Proof(0)) == "WRONG_TOKEN"
    assert told(Proof(7, "z")) == told(Proof(worker_id="z")) == "OTHER_WORKER"
    assert told(ANYBODY) == "NO_PROOF"
    assert told(ANYBODY, claims=1) is None
    assert judge_holder(Proof(NO_TOKEN), NO_TOKEN, "w", 1) == "WRONG_TOKEN"


@given(st.integers(1, 2**62 - 1))
def test_a_token_is_read_as_it_was_shown(token: int) -> None:
    assert read_token(show_token(token)) == token


@given(st.text(max_size=20))
def test_what_is_no_token_fits_nothing(text: str) -> None:
    assert read_token(text) >= 0
    assert read_token("x" + text) == NO_TOKEN


@pytest.mark.spec("B1")
def test_jobs_compete_for_the_workers_that_take_both() -> None:
    mine, alike, other, far = (
        class_of("a", "render", 1, ()),
        class_of("a", "render", 9, ()),
        class_of("a", "sound", 1, ()),
        class_of("b", "render", 1, ()),
    )
    everything = [mine, alike, other, far]
    assert rivals_of(mine, everything, []) == [mine, alike, other]
    renders = Wants("a", frozenset({"render"}))
    assert rivals_of(mine, everything, [renders, Wants("b")]) == [mine, alike]
    assert rivals_of(mine, everything, [renders, Wants()]) == everything
