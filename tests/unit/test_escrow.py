"""Units set aside for instances: gathered, drawn and dealt to the unit."""

import pytest

from ksana.domain.queue.admission import Capacity
from ksana.domain.queue.escrow import (
    GONE,
    IDLE,
    Allotment,
    Draw,
    Standing,
    deal,
    draw,
    gather,
    own_capacity,
    should_gather,
    with_dealt,
)

pytestmark = pytest.mark.spec("Q9")

NOW = 10 * GONE


def pool(total: int = 100, used: int = 0, active: int = 0, kept: int = 0) -> Capacity:
    return Capacity(total, used, active, kept, "j" if kept else None, 0, NOW + 1)


def allotment(
    shard: int, instance: int = 1, units: int = 10, leases: int = 0, seen_at: int = NOW
) -> Allotment:
    return Allotment(shard, instance, units, leases, seen_at, era=shard + 50)


def standing(
    *allotments: Allotment, used: int = 0, total: int = 100, kept: int = 0, freed: int = 0
) -> Standing:
    return Standing(pool(total, used, kept=kept), allotments, freed)


def test_what_is_brought_home_is_used_no_more_and_its_leases_are_counted() -> None:
    out = [allotment(1, units=10, leases=4), allotment(2, units=5, leases=-1)]
    home = gather(pool(used=40, active=3), out)
    assert (home.used, home.active, home.total) == (25, 6, 100)
    assert gather(pool(used=40, active=3), []) == pool(used=40, active=3)


def test_an_instance_grants_what_is_set_aside_for_it() -> None:
    shares = [allotment(1, 1, 10), allotment(2, 2, 20), allotment(3, 1, 5)]
    found = own_capacity(standing(*shares, used=100), 1, NOW)
    assert found == Capacity(15, 0, 0, 0, None, 0, 0)
    assert own_capacity(standing(used=100), 1, NOW) == Capacity(0, 0, 0, 0, None, 0, 0)
    assert standing(*shares).of_instance(2) == [shares[1]]


@pytest.mark.parametrize(
    ("used", "kept", "may"), [(100, 0, True), (101, 0, False), (50, 5, False), (101, 5, False)]
)
def test_an_instance_grants_nothing_alone_while_units_are_kept_or_too_many_are_out(
    used: int, kept: int, may: bool
) -> None:
    found = own_capacity(standing(allotment(1), used=used, kept=kept, freed=3), 1, NOW)
    assert (found is not None) is may


@pytest.mark.parametrize(
    ("used", "shares", "patient", "eager"),
    [
        (99, [], True, True),  # some are free
        (100, [], False, False),
        (100, [allotment(1, 1)], False, False),  # its own
        (100, [allotment(1, 1, seen_at=NOW - IDLE)], False, False),
        (100, [allotment(1, 2, units=0, seen_at=NOW - IDLE)], False, False),
        (100, [allotment(1, 2)], False, True),  # in use by another
        (100, [allotment(1, 2, seen_at=NOW - IDLE + 1)], False, True),
        (100, [allotment(1, 2, seen_at=NOW - IDLE)], True, True),
        (100, [allotment(1, 2), allotment(2, 3, seen_at=NOW - IDLE)], True, True),
    ],
)
def test_units_are_brought_home_when_some_are_to_spare(
    used: int, shares: list[Allotment], patient: bool, eager: bool
) -> None:
    there = standing(*shares, used=used)
    assert should_gather(there, 1, NOW, is_patient=True) is patient
    assert should_gather(there, 1, NOW, is_patient=False) is eager


def test_units_are_drawn_from_the_own_row_first_then_from_the_largest() -> None:
    others = allotment(4, instance=2, units=50)
    shares = standing(
        allotment(1, units=3), allotment(2, units=9), allotment(3, units=5), others, used=100
    )
    assert draw(shares, 1, 1, 2) == [Draw(1, 51, 2)]
    assert draw(shares, 1, 1, 4) == [Draw(1, 51, 3), Draw(2, 52, 1)]
    assert draw(shares, 1, 9, 17) == [Draw(2, 52, 9), Draw(3, 53, 5), Draw(1, 51, 3)]
    empty = standing(allotment(1, units=0), allotment(2, units=2))
    assert draw(empty, 1, 1, 2) == [Draw(2, 52, 2)]
    assert draw(shares, 1, 1, 0) == []
    with pytest.raises(AssertionError, match="more is drawn"):
        draw(shares, 1, 1, 18)


@pytest.mark.parametrize(
    ("units", "drawn"), [(0, []), (6, []), (7, []), (8, [Draw(1, 51, 1)]), (10, [Draw(1, 51, 3)])]
)
def test_what_the_transaction_has_freed_is_granted_before_what_is_set_aside(
    units: int, drawn: list[Draw]
) -> None:
    shares = standing(allotment(1, units=3), freed=7, used=100)
    assert own_capacity(shares, 1, NOW) == Capacity(10, 0, 0, 0, None, 0, 0)
    assert draw(shares, 1, 1, units) == drawn
    with pytest.raises(AssertionError, match="more is drawn"):
        draw(shares, 1, 1, 11)


def test_what_is_free_is_dealt_in_equal_parts_and_the_rest_stays_with_who_deals() -> None:
    shares = [allotment(7, 2), allotment(8, 3)]
    assert deal(pool(100, 89), shares, 5, 1, NOW) == {7: 3, 8: 3, 5: 5}
    assert deal(pool(100, 89), [], 5, 1, NOW) == {5: 11}
    # Fewer units than instances: all for the one that deals.
    assert deal(pool(100, 98), shares, 5, 1, NOW) == {5: 2}
    assert deal(pool(100, 97), shares, 5, 1, NOW) == {7: 1, 8: 1, 5: 1}


@pytest.mark.parametrize(
    ("there", "dealt"),
    [
        (pool(100, 99), {5: 1}),
        (pool(100, 100), {}),
        (pool(100, 101), {}),
        (pool(100, 50, kept=1), {}),
    ],
)
def test_nothing_is_dealt_that_is_not_free_or_kept_for_somebody(
    there: Capacity, dealt: dict[int, int]
) -> None:
    assert deal(there, [], 5, 1, NOW) == dealt


def test_only_instances_that_are_about_get_a_part_at_their_newest_row() -> None:
    shares = [
        allotment(7, 2, seen_at=NOW - 5),
        allotment(8, 2, seen_at=NOW - 3),
        allotment(9, 2, seen_at=NOW - 3),
        allotment(10, 2, seen_at=NOW - 4),
        allotment(11, 3, seen_at=NOW - GONE),
        allotment(12, 4, seen_at=NOW - GONE + 1),
        allotment(13, 1),
    ]
    assert deal(pool(30, 0), shares, 5, 1, NOW) == {8: 10, 12: 10, 5: 10}


def test_what_was_dealt_is_out() -> None:
    assert with_dealt(pool(used=5), {1: 3, 2: 4}).used == 12
