"""Claims over tables in memory: what one asks before it takes jobs, what it expects to find, and
what is remembered of the filters."""

import pytest

from ksana.base.instant import MINUTE, SECOND
from ksana.domain.queue.classes import KEPT, Wants
from ksana.domain.queue.jobs import ReadyJob
from ksana.service.queue import class_cache
from ksana.service.queue.claims import NOTHING, PROMOTE, SHORT
from ksana.service.queue.class_cache import FILTERS, READ_BACK
from tests.unit.queue_rows import NOW
from tests.unit.queue_tables import ANY, Claims, only


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.mark.spec("Q2")
def test_jobs_that_have_come_due_are_handed_out_in_their_place(claims: Claims) -> None:
    claims.tx.add()
    urgent = claims.tx.add(priority="URGENT", is_due=False)
    assert claims.take().taken[0].job_id == urgent.job_id
    again = claims.tx.add(priority="URGENT", is_due=False)
    assert claims.take().taken[0].job_id == again.job_id, "though jobs were expected at once"
    assert claims.tx.job_order.asked_due == [PROMOTE, PROMOTE]


def test_who_found_jobs_is_expected_to_find_more_and_asks_for_them_at_once(
    claims: Claims,
) -> None:
    for _ in range(3):
        claims.tx.add()
    claims.lease()
    assert claims.tx.take_log() == ["outlook", "classes", "has_ready", "lock", "take", "write"]
    assert len(claims.lease().taken) == 1
    assert claims.tx.take_log() == ["open", "lock", "outlook", "take", "write"]
    claims.take()
    assert claims.tx.take_log() == ["open", "outlook", "take"]
    assert claims.take() == NOTHING
    assert claims.tx.take_log() == ["open", "outlook", "take"]
    assert claims.take() == NOTHING
    assert claims.tx.take_log() == ["outlook", "take"], "there were none: look first"


def test_who_takes_some_of_the_classes_looks_for_each_before_it_asks(claims: Claims) -> None:
    for kind in ("x", "y", "z"):
        claims.tx.add(kind)
        claims.tx.add(kind)
    claims.take(only("x"))
    claims.take(only("x", "y"))
    claims.tx.take_log()
    claims.take(only("x"))
    assert claims.tx.take_log() == ["open", "outlook", "take"], "one class is asked for by its id"
    claims.take(only("x", "y"))
    assert claims.tx.take_log() == ["outlook", "take"]


@pytest.mark.spec("Q2")
def test_a_job_of_a_new_class_goes_only_to_who_takes_it(claims: Claims) -> None:
    claims.tx.add("x")
    claims.tx.add("x")
    assert len(claims.take(only("x")).taken) == 1  # all classes there are
    claims.tx.add("y", priority="URGENT")
    claimed = claims.take(only("x"))
    assert [job.job_type for job in claimed.taken] == ["x"], "it lay behind the new one"
    assert [job.job_type for job in claims.take().taken] == ["y"]


@pytest.mark.parametrize("is_expected", [False, True], ids=["looks first", "asks at once"])
def test_a_job_of_a_class_that_is_not_known_yet_is_left_where_it_is(is_expected: bool) -> None:
    """Its class was added after the classes were read: whether the worker takes it is unknown."""
    claims = Claims()
    claims.tx.add("x")
    mine = claims.tx.add("x")
    if is_expected:
        claims.take()
    new = claims.tx.add("y", priority="URGENT")
    del claims.tx.job_order.classes[new.class_id]
    claimed = claims.take(limit=5)
    assert claimed.taken[-1] == mine
    assert claims.tx.job_order.ready == [new]


def test_whoever_expects_jobs_and_finds_no_unit_free_is_short(claims: Claims) -> None:
    claims.tx.add(cost=100)
    assert len(claims.lease().taken) == 1
    claims.tx.take_log()
    assert claims.lease() == SHORT
    assert claims.tx.take_log()[0] == "open"


def test_nothing_is_expected_of_a_filter_that_only_a_second_look_came_with(
    claims: Claims,
) -> None:
    claims.tx.capacity.use(60)
    for cost in (50, 10, 10):
        claims.tx.add(cost=cost)
    assert [job.cost_units for job in claims.lease().taken] == [10]
    claims.tx.take_log()
    claims.take(Wants(max_cost_units=40))
    assert claims.tx.take_log()[0] == "outlook"


def test_classes_are_read_again_only_when_one_was_added(claims: Claims) -> None:
    claims.tx.add("x")
    for wants in (ANY, only("x"), only("z")):
        claims.take(wants)
    assert [word for word in claims.tx.take_log() if "classes" in word] == ["classes"]
    claims.tx.add("z")
    assert [job.job_type for job in claims.take(only("z")).taken] == ["z"]
    assert [word for word in claims.tx.take_log() if "classes" in word] == ["new classes"]


def test_what_was_entered_of_late_is_read_and_now_and_then_all(claims: Claims) -> None:
    claims.tx.add("x")
    claims.take()
    old, new = claims.tx.add("old"), claims.tx.add("new")
    claims.tx.pass_time(4 * MINUTE)
    claims.tx.job_order.until = {
        old.class_id: NOW + KEPT - READ_BACK - 1,
        new.class_id: NOW + KEPT - READ_BACK,
    }
    claims.take(only("none"))
    assert {kind.job_type for kind in claims.cache.known.classes} == {"x", "new"}
    claims.tx.pass_time(MINUTE)
    del claims.tx.job_order.classes[new.class_id]
    claims.take(only("none"))
    assert {kind.job_type for kind in claims.cache.known.classes} == {"x", "old"}, (
        "and what went is out"
    )
    claims.tx.take_log()
    claims.tx.pass_time(-MINUTE)  # a clock that was set back
    claims.take(only("none"))
    assert "classes" in claims.tx.take_log()


def test_filters_are_forgotten_when_they_have_too_many_classes(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_cache, "FILTERED", 25)
    for number in range(10):
        claims.tx.add(f"k{number}")
    for cost in (50, 60, 70):
        claims.take(Wants(max_cost_units=cost))
    assert claims.cache.filters_since(NOW) == [Wants(max_cost_units=70)]
    for _ in range(5):  # the same again is counted once
        claims.tx.add("more")
        claims.take(Wants(max_cost_units=70))
    assert claims.cache.filters_since(NOW) == [Wants(max_cost_units=70)]


def test_the_filters_of_late_are_those_that_claims_came_with(claims: Claims) -> None:
    claims.take(only("x"))
    claims.tx.pass_time(SECOND)
    claims.lease(only("y"))
    assert claims.cache.filters_since(NOW) == [only("x"), only("y")]
    assert claims.cache.filters_since(NOW + SECOND) == [only("y")]
    claims.tx.pass_time(SECOND)
    claims.take(only("x"))
    assert claims.cache.filters_since(NOW + SECOND) == [only("x"), only("y")]
    assert claims.cache.filters_since(NOW + 2 * SECOND) == [only("x")]


def test_filters_are_remembered_up_to_so_many(claims: Claims) -> None:
    for nth in range(FILTERS):
        claims.take(Wants(addon_id=str(nth)))
    assert len(claims.cache.filters_since(0)) == FILTERS
    claims.take(Wants(addon_id="0"))
    assert len(claims.cache.filters_since(0)) == FILTERS
    claims.take(Wants(addon_id="more"))
    assert claims.cache.filters_since(0) == [Wants(addon_id="more")]


@pytest.mark.parametrize("count", [1, 63, 64, 65])
def test_who_takes_anything_gets_jobs_of_any_number_of_classes(count: int) -> None:
    claims = Claims()
    jobs: list[ReadyJob] = [claims.tx.add(f"k{nth}", 1) for nth in range(count)]
    assert claims.take(limit=count).taken == jobs
    jobs = [claims.tx.add(f"k{nth}", 1) for nth in range(count)]
    assert [job.job_type for job in claims.take(limit=count).taken] == [
        job.job_type for job in jobs
    ]
