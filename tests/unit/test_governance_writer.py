"""The writer of governance: what a change leaves in rows, events, the audit, counts and letters."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import HOUR
from ksana.domain.dead_letters import NewLetter
from ksana.domain.governance.acks import MADE_BY_ACK
from ksana.domain.governance.audit import AuditEntry
from ksana.domain.governance.changes import (
    GovernanceJobChange,
    ObjectChange,
    describe_job,
    describe_object,
)
from ksana.domain.governance.jobs import (
    AttemptFailure,
    NewGovernanceJob,
    decide_enqueue,
    decide_failure,
    decide_follow_up,
    remove_follow_up,
    requeue,
)
from ksana.domain.governance.records import GovernanceJob, GovernedObject, Who
from ksana.engine.governance.writer import LostRaceError, write_changes
from tests.unit.governance_ground import NOW, a_job, an_object

WHO = Who(actor="tester", correlation_id="req-1", decision_trace_id="trace-1")


class Written:
    """The tables of a transaction; what was written is kept."""

    def __init__(self) -> None:
        self.objects = self.governance = self.governance_figures = self
        self.events = self.audit = self.dead_letters = self
        self.jobs: list[Any] = []
        self.made: list[GovernedObject] = []
        self.changed: list[tuple[GovernedObject, GovernedObject]] = []
        self.is_lost = False
        self.texts: list[tuple[str, str, str, Any]] = []
        self.entries: list[AuditEntry] = []
        self.counts: Counter[str] = Counter()
        self.letters: list[Any] = []

    def write(self, changes: Sequence[Any]) -> None:
        self.jobs += changes

    def insert_if_new(self, objects: Sequence[GovernedObject]) -> int:
        self.made += objects
        return len(objects) - self.is_lost

    def update_if_unchanged(self, changes: Sequence[tuple[GovernedObject, GovernedObject]]) -> int:
        self.changed += changes
        return len(changes) - self.is_lost

    def append_texts(self, texts: Sequence[tuple[str, str, str, str]]) -> None:
        self.texts += [(*text[:3], msgspec.json.decode(text[3])) for text in texts]

    def append(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    def count(self, name: str, number: int) -> None:
        self.counts[name] += number

    def add(self, surface: str, letters: Sequence[NewLetter]) -> None:
        self.letters.append((surface, list(letters)))

    def settle(self, surface: str, entity_ids: Sequence[str]) -> None:
        self.letters.append((surface, list(entity_ids)))


@pytest.fixture
def tx() -> Any:
    return Written()


def enqueued(number: int = 1) -> GovernanceJobChange:
    new = NewGovernanceJob(
        job_id=f"job_{number}",
        object_type="memory",
        object_id="m1",
        action="verify",
        urgency=1,
        run_at=NOW,
    )
    return decide_enqueue(new, NOW)


def failed(job: GovernanceJob, **more: Any) -> GovernanceJobChange:
    failure = AttemptFailure(job_id=job.job_id, error="no", **more)
    return decide_failure(job, failure, NOW, False)


RUNNING = a_job(status="running", position=None, worker_id="w", lease_token=5)
LAST = msgspec.structs.replace(RUNNING, max_attempts=1)
DEAD_JOB = failed(LAST).job


@pytest.mark.spec("G12")
@pytest.mark.parametrize(
    ("change", "name", "counted"),
    [
        (enqueued(), "GOV_JOB_ENQUEUED", {"enqueued": 1}),
        (failed(RUNNING), "GOV_JOB_RETRYING", {"retried": 1}),
        (failed(LAST), "GOV_JOB_DEAD_LETTER", {"dead": 1}),
        (failed(RUNNING, is_final=True), "GOV_JOB_FAILED", {"failed": 1}),
        (requeue(DEAD_JOB, NOW, False), "GOV_JOB_REQUEUED", {}),
        (remove_follow_up(a_job()), "GOV_JOB_REMOVED", {}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_change_of_a_job_is_written_told_audited_and_counted(
    tx: Any, change: GovernanceJobChange, name: str, counted: dict[str, int]
) -> None:
    write_changes(tx, WHO, [change])
    job, (before, after) = change.job, describe_job(change)
    assert tx.jobs == [(change.old, change.new)]
    assert tx.texts == [("GOV_JOB", job.job_id, name, {"reason": change.reason, **change.data})]
    assert tx.entries == [
        AuditEntry(
            event_type=change.audit,
            actor="tester",
            object_type="memory",
            object_id="m1",
            before=before,
            after=after,
            reason=change.reason,
            job_id=job.job_id,
            correlation_id="req-1",
            decision_trace_id="trace-1",
        )
    ]
    assert tx.counts == counted
    assert (tx.made, tx.changed) == ([], [])


def test_changes_of_one_kind_are_counted_together(tx: Any) -> None:
    write_changes(tx, WHO, [enqueued(1), enqueued(2), failed(RUNNING)])
    assert tx.counts == {"enqueued": 2, "retried": 1}


def test_an_alert_is_a_second_event(tx: Any) -> None:
    change = msgspec.structs.replace(
        failed(RUNNING), alert=("GATE_DEFERRED_LONG", {"deferrals": 10})
    )
    write_changes(tx, WHO, [change])
    assert tx.texts[1:] == [
        (
            "GOV_JOB",
            RUNNING.job_id,
            "GATE_DEFERRED_LONG",
            {"reason": change.reason, "deferrals": 10, "alert": True},
        )
    ]


@pytest.mark.parametrize(
    ("change", "letters"),
    [
        (failed(RUNNING), []),
        (enqueued(), []),
        (remove_follow_up(a_job()), []),
        (
            failed(LAST),
            [("governance", [NewLetter(LAST.job_id, "memory", "dead_letter", "no")])],
        ),
        (requeue(DEAD_JOB, NOW, False), [("governance", [DEAD_JOB.job_id])]),
    ],
    ids=["tried again", "new", "removed", "given up", "queued again"],
)
def test_a_job_that_is_given_up_is_a_dead_letter_until_it_is_queued_again(
    tx: Any, change: GovernanceJobChange, letters: list[Any]
) -> None:
    write_changes(tx, WHO, [change])
    assert tx.letters == letters


# Several changes of one


def follow_up() -> tuple[GovernedObject, GovernanceJobChange]:
    governed = an_object(next_action_at=NOW + HOUR, next_action="decay")
    made = decide_follow_up(governed, None, job_id="job_2", urgency=1, max_attempts=3, now=NOW)
    assert made is not None
    return governed, made


def test_a_follow_up_that_is_made_and_moved_in_one_call_is_written_once(tx: Any) -> None:
    governed, made = follow_up()
    later = msgspec.structs.replace(governed, next_action_at=NOW + 2 * HOUR)
    moved = decide_follow_up(later, made.job, job_id="job_3", urgency=1, max_attempts=3, now=NOW)
    assert moved is not None
    write_changes(tx, WHO, [made, moved])
    assert tx.jobs == [(None, moved.new)]
    assert [text[2] for text in tx.texts] == ["GOV_JOB_ENQUEUED", "GOV_JOB_MOVED"]


def test_a_follow_up_that_is_made_and_removed_in_one_call_is_not_written(tx: Any) -> None:
    _, made = follow_up()
    write_changes(tx, WHO, [made, remove_follow_up(made.job)])
    assert tx.jobs == []
    assert len(tx.entries) == 2, "but told"


def test_a_job_that_changes_twice_is_compared_with_what_it_was(tx: Any) -> None:
    first = failed(RUNNING)
    second = msgspec.structs.replace(
        first, old=first.new, new=msgspec.structs.replace(first.job, attempt=9)
    )
    write_changes(tx, WHO, [first, second])
    assert tx.jobs == [(RUNNING, second.new)]


# Objects


def changed(old: GovernedObject | None, new: GovernedObject, **more: Any) -> ObjectChange:
    given: dict[str, Any] = {"event": "OBJECT_CHANGED", "reason": "PATCHED"}
    return ObjectChange(old=old, new=new, **given | more)


OLD = an_object(status="active")
HEAVIER = msgspec.structs.replace(OLD, weight=2.0, version=2)
STALE = msgspec.structs.replace(OLD, status="stale", version=2)


@pytest.mark.spec("G7", "G12")
@pytest.mark.parametrize(
    ("change", "audit", "data"),
    [
        (changed(None, OLD), "object.register", {"status": "active"}),
        (changed(OLD, HEAVIER), "object.change", {"status": "active"}),
        (changed(OLD, STALE), "object.move", {"status": "stale", "from": "active"}),
        (
            changed(OLD, HEAVIER, job_id="job_1", evidence_refs='["doc:1"]'),
            "object.change",
            {"status": "active", "job_id": "job_1"},
        ),
    ],
    ids=["registered", "changed", "moved", "changed by a job"],
)
def test_a_change_of_an_object_is_written_told_and_audited(
    tx: Any, change: ObjectChange, audit: str, data: dict[str, Any]
) -> None:
    write_changes(tx, WHO, [], [change])
    assert tx.made == ([change.new] if change.old is None else [])
    assert tx.changed == ([] if change.old is None else [(change.old, change.new)])
    assert tx.texts == [
        ("OBJECT", "memory:m1", "OBJECT_CHANGED", {"reason": "PATCHED"} | data),
    ]
    assert tx.entries == [
        AuditEntry(
            event_type=audit,
            actor="tester",
            object_type="memory",
            object_id="m1",
            before=describe_object(change.old),
            after=describe_object(change.new),
            reason="PATCHED",
            evidence_refs=change.evidence_refs,
            job_id=change.job_id,
            correlation_id="req-1",
            decision_trace_id="trace-1",
        )
    ]
    assert (tx.counts, tx.letters) == ({}, [])


def test_an_object_whose_change_another_event_tells_is_only_written(tx: Any) -> None:
    write_changes(tx, WHO, [], [changed(OLD, HEAVIER, event=None)])
    assert (tx.changed, tx.texts, tx.entries) == ([(OLD, HEAVIER)], [], [])


def test_an_object_that_an_ack_made_is_told_and_its_ack_is_the_entry(tx: Any) -> None:
    write_changes(tx, WHO, [], [changed(None, OLD, reason=MADE_BY_ACK)])
    assert (len(tx.texts), tx.entries) == (1, [])


def test_several_changes_of_one_object_are_written_as_one(tx: Any) -> None:
    stale = msgspec.structs.replace(HEAVIER, status="stale", version=3)
    write_changes(tx, WHO, [], [changed(OLD, HEAVIER), changed(HEAVIER, stale)])
    assert (tx.made, tx.changed, len(tx.texts)) == ([], [(OLD, stale)], 2)


def test_an_object_that_is_made_and_changed_in_one_call_is_made_as_it_ends_up(tx: Any) -> None:
    write_changes(tx, WHO, [], [changed(None, OLD), changed(OLD, HEAVIER)])
    assert (tx.made, tx.changed) == ([HEAVIER], [])


@pytest.mark.parametrize("change", [changed(None, OLD), changed(OLD, HEAVIER)])
def test_an_object_that_another_transaction_changed_first_is_a_lost_race(
    tx: Any, change: ObjectChange
) -> None:
    tx.is_lost = True
    with pytest.raises(LostRaceError):
        write_changes(tx, WHO, [enqueued()], [change])
    assert (tx.jobs, tx.texts, tx.entries) == ([], [], [])


@pytest.mark.parametrize(
    ("jobs", "objects"),
    [
        ([msgspec.structs.replace(failed(RUNNING), old=DEAD_JOB, new=RUNNING)], []),
        ([msgspec.structs.replace(enqueued(), new=RUNNING)], []),
        ([], [changed(STALE, msgspec.structs.replace(OLD, status="candidate"))]),
    ],
    ids=["a job's move", "a job's first state", "an object's move"],
)
def test_a_move_that_the_lifecycle_does_not_have_writes_nothing(
    tx: Any, jobs: list[Any], objects: list[Any]
) -> None:
    with pytest.raises(ConflictError) as raised:
        write_changes(tx, WHO, jobs, objects)
    assert raised.value.code == "ILLEGAL_TRANSITION"
    assert (tx.jobs, tx.made, tx.changed, tx.texts) == ([], [], [], [])
