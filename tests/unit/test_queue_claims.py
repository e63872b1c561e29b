"""Claims over tables in memory: who gets which jobs, and what a claim asks and locks to find
out."""

import pytest

from ksana.base.instant import SECOND
from ksana.domain.queue.admission import PATIENCE, Limits
from ksana.domain.queue.changes import claimed_job
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.effects import new_lease
from ksana.service.queue.claims import (
    NOTHING,
    SHORT,
    Claim,
    Claimed,
)
from tests.unit.queue_rows import NOW
from tests.unit.queue_tables import ANY, LIMITS, Claims, only


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
def test_a_second_look_is_for_what_fits_and_for_what_the_worker_takes(claims: Claims) -> None:
    claims.tx.capacity.use(80)
    claims.tx.add("large", 60)
    claims.tx.add("larger", 18)
    small = claims.tx.add("small", 15)
    assert claims.lease(Wants(max_cost_units=15)).taken == [small]
    claims.tx.add("small", 5)
    assert [job.cost_units for job in claims.lease(Wants(max_cost_units=60)).taken] == [5]


@pytest.mark.spec("Q9")
def test_a_second_look_brings_no_more_than_was_asked_for(claims: Claims) -> None:
    jobs = [claims.tx.add(cost=cost) for cost in (70, 60, 10, 10)]
    assert claims.lease(limit=2).taken == [jobs[0], jobs[2]]
    assert claims.tx.capacity.read(100).used == 80


@pytest.mark.spec("Q9")
def test_there_is_no_third_look(claims: Claims) -> None:
    claims.tx.capacity.use(80)
    jobs = [claims.tx.add(cost=cost) for cost in (30, 30, 15, 15)]
    assert claims.lease(limit=2).taken == [jobs[2]]
    assert claims.tx.take_log().count("take") == 2


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
