"""Claims over tables in memory: who gets which jobs, and what a claim asks and locks to find
out."""

from typing import Any

import pytest

from ksana.base.instant import SECOND
from ksana.domain.queue.admission import PATIENCE, Limits
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.effects import claimed_job, new_lease
from ksana.domain.queue.jobs import ReadyJob
from ksana.service.queue.claims import (
    FILTERS,
    NOTHING,
    PROMOTE,
    SHORT,
    Claim,
    Claimed,
    JobClassCache,
    claim_jobs,
    claim_together,
)
from tests.unit.queue_rows import NOW
from tests.unit.queue_tables import ClaimTx

LIMITS = Limits(100)
ANY = Wants()


def only(*kinds: str, **more: Any) -> Wants:
    return Wants(job_types=frozenset(kinds), **more)


class Claims:
    """Claims of one process, one set after the other."""

    def __init__(self, tx: ClaimTx | None = None, limits: Limits = LIMITS) -> None:
        self.tx = tx or ClaimTx()
        self.cache = JobClassCache()
        self.limits = limits

    def take(self, wants: Wants = ANY, limit: int = 1, **more: Any) -> Claimed:
        tx: Any = self.tx
        return claim_jobs(tx, Claim("w", wants, limit, **more), self.cache, self.limits)

    def lease(self, wants: Wants = ANY, limit: int = 1, **more: Any) -> Claimed:
        return self.take(wants, limit, has_lease=True, **more)

    def take_together(self, *claims: Claim) -> list[Claimed]:
        tx: Any = self.tx
        return claim_together(tx, claims, self.cache, self.limits)


def ids_of(claimed: Claimed) -> list[str]:
    return [job.job_id for job in claimed.taken]


@pytest.fixture
def claims() -> Claims:
    return Claims()


# What a claim gets


@pytest.mark.spec("Q2")
def test_a_claim_hands_out_the_next_jobs_as_they_are_from_now_on(claims: Claims) -> None:
    jobs = [claims.tx.add(), claims.tx.add(), claims.tx.add()]
    claimed = claims.take(limit=2)
    assert (claimed.taken, claimed.at) == (jobs[:2], NOW)
    assert claimed.until == NOW + LIMITS.claim_ttl_us
    assert [(one.job_id, one.move, one.worker_id, one.until) for one in claimed.changes] == [
        (job.job_id, "claim", "w", claimed.until) for job in jobs[:2]
    ]
    assert len({one.claim_token for one in claimed.changes}) == 2
    assert claimed.jobs == [
        claimed_job(job, change, NOW) for job, change in zip(jobs, claimed.changes, strict=False)
    ]
    assert (claimed.leases, claimed.has_leases) == ([], False)
    assert claims.tx.job_order.ready == jobs[2:]


@pytest.mark.spec("Q2", "Q9")
def test_a_claim_with_leases_starts_the_jobs(claims: Claims) -> None:
    jobs = [claims.tx.add(cost=30), claims.tx.add(cost=20)]
    claimed = claims.lease(limit=5, ttl_sec=2.5)
    assert (claimed.taken, claimed.at) == (jobs, NOW)
    assert (claimed.until, claimed.has_leases) == (NOW + 2_500_000, True)
    assert [(one.move, one.worker_id, one.ttl_sec) for one in claimed.changes] == [
        ("start", "w", 2.5)
    ] * 2
    assert claimed.leases == [new_lease(change, NOW) for change in claimed.changes]
    assert len({lease.lease_id for lease in claimed.leases}) == 2
    assert [job.state for job in claimed.jobs] == ["RUNNING"] * 2
    capacity = claims.tx.capacity.read(100)
    assert (capacity.used, capacity.active) == (50, 2)


@pytest.mark.spec("Q2")
@pytest.mark.parametrize("has_lease", [False, True], ids=["claims", "leases"])
def test_claims_that_want_the_same_share_out_in_their_order(has_lease: bool) -> None:
    claims = Claims()
    jobs = [claims.tx.add(cost=1).job_id for _ in range(4)]
    asked = [
        Claim(f"w{nth}", ANY, limit, has_lease, ttl_sec=10 + nth)
        for nth, limit in enumerate((2, 1, 5, 3))
    ]
    got = claims.take_together(*asked)
    assert [ids_of(one) for one in got] == [jobs[:2], jobs[2:3], jobs[3:], []]
    assert got[3] == NOTHING
    workers = [{change.worker_id for change in one.changes} for one in got]
    assert workers == [{"w0"}, {"w1"}, {"w2"}, set()]
    if has_lease:
        assert [one.until - NOW for one in got[:3]] == [10 * SECOND, 11 * SECOND, 12 * SECOND]


@pytest.mark.spec("Q2")
def test_claims_that_want_different_things_are_each_served_in_one_transaction(
    claims: Claims,
) -> None:
    x, y, z = claims.tx.add("x"), claims.tx.add("y"), claims.tx.add("z")
    got = claims.take_together(
        Claim("w1", only("y")),
        Claim("w2", only("x"), has_lease=True),
        Claim("w3", only("y"), has_lease=True),
        Claim("w4", only("x", "z")),
    )
    assert [list(one.taken) for one in got] == [[y], [x], [], [z]]
    assert [one.has_leases for one in got] == [False, True, False, False]


@pytest.mark.spec("Q2")
@pytest.mark.parametrize("has_lease", [False, True], ids=["claims", "leases"])
def test_where_nothing_waits_each_gets_nothing(has_lease: bool) -> None:
    claims = Claims()
    asked = Claim("w", ANY, has_lease=has_lease)
    assert claims.take_together(asked, asked) == [NOTHING, NOTHING]
    claims.tx.add("x")
    asked = Claim("w", only("y"), has_lease=has_lease)
    assert claims.take_together(asked, asked) == [NOTHING, NOTHING]


# What fits


@pytest.mark.spec("Q9")
def test_who_gets_no_lease_for_lack_of_units_is_told_so(claims: Claims) -> None:
    claims.tx.capacity.use(60)
    small, large = claims.tx.add(cost=40), claims.tx.add(cost=41)
    asked = Claim("w", ANY, has_lease=True)
    first, second, third = claims.take_together(asked, asked, asked)
    assert (ids_of(first), second, third) == ([small.job_id], SHORT, SHORT)
    assert claims.lease() == SHORT
    assert claims.tx.job_order.ready == [large]
    assert claims.tx.capacity.read(100).used == 100


@pytest.mark.spec("Q9")
def test_where_no_unit_is_free_nothing_is_locked(claims: Claims) -> None:
    claims.tx.capacity.use(100)
    claims.tx.add()
    for _ in range(2):
        assert claims.lease() == SHORT
        assert {"lock", "take"}.isdisjoint(claims.tx.take_log())
    claims.tx.capacity.use(1)  # more than all, after the capacity was made smaller
    assert claims.lease() == SHORT


@pytest.mark.spec("Q9")
def test_where_no_job_waits_the_capacity_is_not_locked(claims: Claims) -> None:
    claims.tx.add("x")
    assert claims.lease(only("y")) == NOTHING
    assert "lock" not in claims.tx.take_log()


@pytest.mark.spec("Q9")
@pytest.mark.parametrize(
    ("costs", "limit", "most", "expected"),
    [
        ([60, 50, 30], 1, None, [0]),
        ([60, 50, 30], 2, None, [0, 2]),
        ([50, 60, 70, 30, 20], 9, None, [0, 3, 4]),
        ([50, 60, 70, 30, 20], 2, None, [0, 3]),
        ([99, 60, 2, 1], 3, None, [0, 3]),
        ([50, 45, 40, 60, 20], 9, 45, [0, 1]),
        ([100, 1], 9, None, [0]),
        ([50, 45, 40, 6, 5], 9, 45, [1, 2, 3, 4]),
    ],
)
def test_behind_what_does_not_fit_smaller_jobs_are_found(
    costs: list[int], limit: int, most: int | None, expected: list[int]
) -> None:
    claims = Claims()
    jobs = [claims.tx.add(cost=cost) for cost in costs]
    if costs[-1] == 5:  # the first is too large for the worker itself
        wants = Wants(max_cost_units=most)
    else:
        wants = ANY if most is None else Wants(max_cost_units=max(most, costs[0]))
    got = claims.lease(wants, limit)
    assert [jobs.index(job) for job in got.taken] == expected


@pytest.mark.spec("Q9")
def test_smaller_jobs_far_behind_are_found_by_a_second_look(claims: Claims) -> None:
    """The first look brings as many as were asked for; all of them may be too large."""
    claims.tx.capacity.use(80)
    for _ in range(5):
        claims.tx.add("large", 30)
    small = [claims.tx.add("small", 10) for _ in range(3)]
    claimed = claims.lease(limit=3)
    assert claimed.taken == small[:2]
    assert claims.tx.capacity.read(100).used == 100


@pytest.mark.spec("Q9")
def test_a_second_look_keeps_to_what_the_worker_takes(claims: Claims) -> None:
    claims.tx.capacity.use(50)
    claims.tx.add("mine", 60)
    claims.tx.add("other", 10)
    claims.tx.add("mine", 45)
    small = claims.tx.add("mine", 20)
    assert claims.lease(only("mine", max_cost_units=40)).taken == [small]
    claims.tx.add("mine", 20)
    assert [job.cost_units for job in claims.lease(only("mine")).taken] == [20]


@pytest.mark.spec("Q9")
def test_a_job_that_waited_long_keeps_its_units_though_nothing_is_handed_out(
    claims: Claims,
) -> None:
    claims.tx.capacity.use(50)
    old = claims.tx.add(cost=60, due_at=NOW - PATIENCE - 1)
    claims.tx.add(cost=50)
    assert claims.lease() == SHORT
    kept = claims.tx.capacity.pool
    assert (kept.reserved_for, kept.reserved_units) == (old.job_id, 60)
    assert "write" in claims.tx.take_log()


@pytest.mark.spec("Q9")
def test_a_job_that_has_not_waited_long_keeps_nothing(claims: Claims) -> None:
    claims.tx.capacity.use(50)
    claims.tx.add(cost=60, due_at=NOW - PATIENCE)
    assert claims.lease() == SHORT
    assert claims.tx.capacity.pool.reserved_for is None
    assert "write" not in claims.tx.take_log()


@pytest.mark.spec("Q9")
def test_an_addon_stays_within_its_share_over_both_looks_and_what_runs() -> None:
    claims = Claims(limits=Limits(100, (("a", 50),)))
    claims.tx.add(cost=20)
    assert len(claims.lease().taken) == 1
    first = claims.tx.add(cost=20)
    claims.tx.add("large", 90, "b")
    claims.tx.add(cost=20)
    small = claims.tx.add("small", 10)
    free = claims.tx.add("free", 30, "b")
    claimed = claims.lease(limit=9)
    assert claimed.taken == [first, small, free]
    assert claims.tx.capacity.sum_of_addon("a") == 50


@pytest.mark.spec("Q9")
def test_jobs_of_an_addon_whose_share_is_used_up_keep_nobody_else_waiting() -> None:
    claims = Claims(limits=Limits(100, (("a", 25), ("c", 50))))
    for _ in range(3):
        claims.tx.add(cost=10)
    other, third = claims.tx.add("other", 10, "b"), claims.tx.add("other", 50, "c")
    assert [job.addon_id for job in claims.lease(limit=2).taken] == ["a", "a"]
    small = claims.tx.add("small", 5)
    assert claims.lease().taken == [other]
    assert claims.lease(limit=2).taken == [third, small]
    assert claims.lease(limit=2) == SHORT


# What is asked


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


def test_classes_are_read_again_only_when_one_was_added(claims: Claims) -> None:
    claims.tx.add("x")
    for wants in (ANY, only("x"), only("z")):
        claims.take(wants)
    assert claims.tx.take_log().count("classes") == 1
    claims.tx.add("z")
    assert [job.job_type for job in claims.take(only("z")).taken] == ["z"]
    assert claims.tx.take_log().count("classes") == 1


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
