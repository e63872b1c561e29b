"""Which classes of jobs an instance enters with the jobs it submits, and how long it relies on
them."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MINUTE, SECOND, Instant
from ksana.domain.queue.classes import KEPT, KEPT_AFTER, TRUSTED, class_of, kept_until
from ksana.domain.queue.jobs import NewJob
from ksana.service.queue import class_cache
from ksana.service.queue.class_cache import TrustedClasses

pytestmark = pytest.mark.spec("X13", "Q1")

CLOCK = VirtualClock()
NOW = CLOCK.now()


def a_job(kind: str = "t", run_at: Instant | None = None) -> NewJob:
    return NewJob("j", "NORMAL", class_of("a", kind, 1, ()), "{}", "{}", None, 1, run_at, None)


class Submits:
    """Jobs of one instance, submitted one after the other."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.trusted = TrustedClasses(self.clock)

    def add(self, *jobs: NewJob, is_committed: bool = True) -> list[str]:
        """The types that are entered with these."""
        new = self.trusted.choose_new(jobs)
        if is_committed:
            self.trusted.note_committed([job.job_class.id for job in jobs])
        return [kind.job_type for kind in new]


@pytest.fixture
def submits() -> Submits:
    return Submits()


def test_a_class_is_entered_once_and_again_long_before_it_may_go(submits: Submits) -> None:
    assert submits.add(a_job("x"), a_job("y"), a_job("x")) == ["x", "y"]
    submits.clock.step(HOUR)  # the wall clock says nothing of how long it was
    assert submits.add(a_job("x")) == []
    advance(submits.clock, TRUSTED - 1)
    assert submits.add(a_job("x")) == []
    advance(submits.clock, 1)
    assert submits.add(a_job("x")) == ["x"]
    assert submits.add(a_job("x")) == []
    assert 2 * TRUSTED <= KEPT


def advance(clock: VirtualClock, by_us: int) -> None:
    clock._monotonic += by_us


def test_time_that_a_machine_slept_counts(submits: Submits) -> None:
    submits.add(a_job())
    submits.clock._suspended += TRUSTED
    assert submits.add(a_job()) == ["t"]


def test_a_class_is_relied_on_only_once_it_is_committed(submits: Submits) -> None:
    assert submits.add(a_job(), is_committed=False) == ["t"]
    assert submits.add(a_job(), is_committed=False) == ["t"]
    assert submits.add(a_job()) == ["t"]
    assert submits.add(a_job()) == []


def test_a_job_for_later_enters_its_class_unless_it_stays_so_long(submits: Submits) -> None:
    assert submits.add(a_job()) == ["t"]
    due_at = NOW + 5 * HOUR
    assert submits.add(a_job(run_at=due_at), a_job(run_at=NOW)) == ["t"]
    last_at = due_at + KEPT_AFTER - KEPT
    assert submits.add(a_job(run_at=last_at), a_job()) == []
    assert submits.add(a_job(run_at=last_at + 1)) == ["t"]


@pytest.mark.parametrize(
    ("run_ats", "until"),
    [
        ([], NOW + KEPT),
        ([None, NOW - HOUR], NOW + KEPT),
        ([NOW - SECOND, None], NOW - SECOND + KEPT_AFTER),
        ([NOW + 2 * HOUR, NOW + MINUTE, None], NOW + 2 * HOUR + KEPT_AFTER),
    ],
)
def test_a_class_stays_until_the_last_of_its_jobs_was_due(run_ats: Any, until: Instant) -> None:
    assert kept_until(NOW, run_ats) == until


def test_what_is_remembered_is_bounded(submits: Submits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_cache, "MOST_TRUSTED", 10)
    for number in range(100):
        submits.add(a_job(f"k{number}"), is_committed=number % 2 == 0)
        assert max(len(submits.trusted._offered), len(submits.trusted._trusted)) <= 10
