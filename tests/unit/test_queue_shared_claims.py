"""Claims with leases on a store that instances share, over tables in memory: who grants from what
is set aside for it, who brings all units home first, and what those are told who get nothing."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import SECOND
from ksana.domain.queue.admission import PATIENCE, Limits
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.escrow import IDLE
from ksana.service.queue.claims import (
    LATER,
    NOTHING,
    SHORT,
    Claim,
    Claimed,
    JobClassCache,
    claim_together,
)
from tests.unit.queue_rows import NOW
from tests.unit.queue_tables import OURS, THEIRS, ClaimTx

pytestmark = pytest.mark.spec("Q9")

LIMITS = Limits(100)


class Claims:
    """Claims of one instance among several."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.tx = ClaimTx(limits.total, is_shared=True)
        self.cache = JobClassCache()
        self.limits = limits

    def lease(self, *limits: int, can_wait: bool = True, wants: Wants | None = None) -> list[Any]:
        """Claims that come together, each for so many jobs."""
        asked = [
            Claim("w", wants or Wants(), limit, has_lease=True, can_wait=can_wait)
            for limit in limits
        ]
        tx: Any = self.tx
        return claim_together(tx, asked, self.cache, self.limits)

    @property
    def set_aside(self) -> dict[int, int]:
        """Units by instance."""
        return {one.instance: one.units for one in self.tx.capacity.allotments.values()}

    @property
    def out(self) -> tuple[int, int]:
        """Units that are out of the pool, and those that leases hold."""
        leased = sum(one.cost_units for one in self.tx.capacity.leased)
        return self.tx.capacity.pool.used, leased


@pytest.fixture
def claims() -> Claims:
    return Claims()


def counts(got: list[Claimed]) -> list[int]:
    return [len(one.taken) for one in got]


def test_the_first_to_come_gets_its_units_from_the_pool_and_the_rest_is_set_aside(
    claims: Claims,
) -> None:
    claims.tx.add()
    assert counts(claims.lease(1)) == [1]
    assert (claims.set_aside, claims.out) == ({OURS: 90}, (100, 10))
    assert claims.tx.take_log() == [
        *("outlook", "classes", "has_ready", "look", "take", "lock", "write")
    ]


def test_what_is_set_aside_is_shared_with_others_that_are_about(claims: Claims) -> None:
    claims.tx.capacity.set_aside(THEIRS, 0)
    claims.tx.add()
    claims.lease(1)
    assert (claims.set_aside, claims.out) == ({OURS: 45, THEIRS: 45}, (100, 10))


def test_who_has_units_set_aside_locks_nothing(claims: Claims) -> None:
    claims.tx.capacity.set_aside(OURS, 50)
    claims.tx.capacity.set_aside(THEIRS, 50)
    claims.tx.add(cost=20)
    claims.tx.add(cost=30)
    assert counts(claims.lease(2)) == [2]
    assert (claims.set_aside, claims.out) == ({OURS: 0, THEIRS: 50}, (100, 50))
    assert {"lock", "write"}.isdisjoint(claims.tx.take_log())
    assert claims.tx.capacity.read(100).active == 2


def test_who_was_refused_for_lack_of_units_gets_those_that_nobody_uses(claims: Claims) -> None:
    claims.tx.capacity.set_aside(OURS, 10)
    claims.tx.add(cost=10)
    claims.tx.add(cost=20)
    assert counts(claims.lease(2)) == [2]
    assert (claims.set_aside, claims.out) == ({OURS: 70}, (100, 30))
    assert "lock" in claims.tx.take_log()


def test_who_gets_something_and_can_wait_leaves_others_what_they_use(claims: Claims) -> None:
    claims.tx.capacity.set_aside(OURS, 10)
    claims.tx.capacity.set_aside(THEIRS, 90)
    claims.tx.add(cost=10)
    claims.tx.add(cost=20)
    first, second = claims.lease(1, 1)
    assert (len(first.taken), second) == (1, LATER)
    assert (claims.set_aside, claims.out) == ({OURS: 0, THEIRS: 90}, (100, 10))
    assert "lock" not in claims.tx.take_log()


def test_who_cannot_wait_brings_home_what_others_use(claims: Claims) -> None:
    claims.tx.capacity.set_aside(OURS, 10)
    claims.tx.capacity.set_aside(THEIRS, 90)
    claims.tx.add(cost=10)
    claims.tx.add(cost=20)
    assert counts(claims.lease(1, 1, can_wait=False)) == [1, 1]
    assert claims.out == (100, 30)


def test_who_has_got_all_it_asked_for_need_not_be_able_to_wait(claims: Claims) -> None:
    """Only those are impatient who got less than they asked for and do not come again."""
    claims.tx.capacity.set_aside(OURS, 10)
    claims.tx.capacity.set_aside(THEIRS, 90)
    claims.tx.add(cost=10)
    claims.tx.add(cost=20)
    tx: Any = claims.tx
    asked = [Claim("now", Wants(), 1, has_lease=True), Claim("w", Wants(), 1, True, can_wait=True)]
    first, second = claim_together(tx, asked, claims.cache, claims.limits)
    assert (len(first.taken), second) == (1, LATER)
    assert "lock" not in claims.tx.take_log()


def test_who_gets_nothing_brings_home_what_others_use(claims: Claims) -> None:
    claims.tx.capacity.set_aside(THEIRS, 100)
    claims.tx.add(cost=20)
    assert counts(claims.lease(1)) == [1]
    assert (claims.set_aside, claims.out) == ({OURS: 40, THEIRS: 40}, (100, 20))


@pytest.mark.parametrize(("rest", "is_left"), [(IDLE - 1, True), (IDLE, False)])
def test_units_that_others_have_not_touched_for_a_while_are_brought_home(
    claims: Claims, rest: int, is_left: bool
) -> None:
    claims.tx.capacity.set_aside(OURS, 10)
    claims.tx.capacity.set_aside(THEIRS, 90, seen_at=NOW - rest)
    claims.tx.add(cost=10)
    claims.tx.add(cost=20)
    assert counts(claims.lease(2)) == [1 if is_left else 2]


def test_where_others_use_all_units_who_gets_none_is_short(claims: Claims) -> None:
    claims.tx.capacity.use(95)
    claims.tx.capacity.set_aside(OURS, 5)
    claims.tx.add(cost=10)
    assert claims.lease(1) == [LATER]
    claims.tx.capacity.use(5)
    claims.tx.capacity.allotments.clear()
    claims.tx.capacity.pool = msgspec.structs.replace(claims.tx.capacity.pool, used=100)
    assert claims.lease(1, 1) == [SHORT, SHORT]


def test_where_nothing_waits_nothing_is_looked_at(claims: Claims) -> None:
    claims.tx.capacity.set_aside(OURS, 100)
    assert claims.lease(1) == [NOTHING]
    assert claims.tx.take_log() == ["outlook", "classes", "has_ready"]


def test_units_that_are_kept_for_somebody_are_decided_on_at_home(claims: Claims) -> None:
    claims.tx.capacity.set_aside(OURS, 100)
    pool = claims.tx.capacity.pool
    claims.tx.capacity.pool = msgspec.structs.replace(
        pool, reserved_units=95, reserved_for="large", reserved_urgency=0, reserved_until=NOW + 1
    )
    claims.tx.add(cost=5)
    claims.tx.add(cost=5)
    first, second = claims.lease(1, 1)
    assert (len(first.taken), second) == (1, SHORT)
    assert (claims.set_aside, claims.out) == ({}, (5, 5)), "nothing is set aside while that lasts"


def test_a_job_that_waited_long_keeps_its_units_in_the_pool(claims: Claims) -> None:
    claims.tx.capacity.use(50)
    claims.tx.capacity.set_aside(OURS, 50)
    old = claims.tx.add(cost=60, due_at=NOW - PATIENCE - 1)
    assert claims.lease(1) == [SHORT]
    pool = claims.tx.capacity.pool
    assert (pool.reserved_for, pool.reserved_units, claims.set_aside) == (old.job_id, 60, {})


def test_with_shares_the_pool_is_held_whatever_is_set_aside() -> None:
    claims = Claims(Limits(100, (("a", 25),)))
    claims.tx.capacity.set_aside(OURS, 100)
    for _ in range(3):
        claims.tx.add(cost=10)
    assert counts(claims.lease(3)) == [2]
    assert claims.tx.take_log()[:4] == ["outlook", "classes", "has_ready", "lock"]
    assert claims.tx.capacity.sum_of_addon("a") == 20


def test_behind_what_does_not_fit_a_smaller_job_is_granted_from_what_is_set_aside(
    claims: Claims,
) -> None:
    claims.tx.capacity.set_aside(OURS, 15)
    claims.tx.capacity.set_aside(THEIRS, 85)
    claims.tx.add(cost=20)
    small = claims.tx.add(cost=10)
    [got] = claims.lease(1)
    assert got.taken == [small]
    assert claims.out == (100, 10)


def test_jobs_are_asked_for_at_once_even_by_who_found_none(claims: Claims) -> None:
    """Nobody waits for a lock meanwhile: a round trip is saved."""
    claims.tx.add()
    claims.tx.capacity.set_aside(OURS, 100)
    claims.lease(1)
    claims.tx.take_log()
    assert claims.lease(1) == [NOTHING]
    assert claims.tx.take_log() == ["open", "look", "outlook", "take"]
    assert claims.lease(1) == [NOTHING]
    assert claims.tx.take_log() == ["open", "look", "outlook", "take"]


def test_while_units_are_short_jobs_are_not_held_in_vain(claims: Claims) -> None:
    claims.tx.add()
    claims.tx.capacity.set_aside(OURS, 100)
    claims.lease(1)
    claims.tx.capacity.use(10)
    claims.tx.capacity.allotments.clear()
    claims.tx.capacity.pool = msgspec.structs.replace(claims.tx.capacity.pool, used=95)
    claims.tx.add()
    assert claims.lease(1) == [SHORT]
    claims.tx.take_log()
    claims.lease(1)
    assert claims.tx.take_log()[0] == "outlook"
    claims.tx.pass_time(SECOND)
    claims.tx.capacity.pool = msgspec.structs.replace(claims.tx.capacity.pool, used=0)
    assert counts(claims.lease(1)) == [1]


def test_a_filter_that_only_a_second_look_came_with_is_not_taken_for_short(
    claims: Claims,
) -> None:
    claims.tx.capacity.use(60)
    claims.tx.capacity.set_aside(OURS, 40)
    claims.tx.add(cost=50)
    claims.tx.add(cost=10)
    claims.lease(1)
    claims.tx.take_log()
    claims.lease(1, wants=Wants(max_cost_units=40))
    assert claims.tx.take_log()[0] == "open"
