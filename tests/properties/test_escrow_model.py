"""Units set aside for instances, moved and brought home, with a crash at every step."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ksana.domain.queue import escrow
from ksana.domain.queue.admission import Capacity
from ksana.domain.queue.escrow import Standing
from tests.properties.escrow_model import EscrowMachine, Rows

QUICK = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=1_500, stateful_step_count=60)
SEARCH = settings(
    QUICK,
    max_examples=1_500,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


FOUND = (AssertionError, ExceptionGroup)
"""A run that fails may fail at its end too: both are told then."""


@pytest.fixture(autouse=True)
def mended() -> Iterator[None]:
    yield
    Rows.fault = ""


@pytest.mark.spec("Q9")
def test_whatever_instances_do_and_wherever_they_crash_no_unit_is_lost_or_granted_twice() -> None:
    run_state_machine_as_test(EscrowMachine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.spec("Q9")
def test_the_same_ten_times_as_long() -> None:
    run_state_machine_as_test(EscrowMachine, settings=LONG)


@pytest.mark.parametrize(
    "fault",
    [
        "frees nothing",
        "frees twice",
        "deals uncounted",
        "leaves what it brought home",
        "holds the pool alone",
        "grants again and frees too",
        "counts its leases twice",
    ],
)
def test_a_fault_in_the_store_is_found(fault: str) -> None:
    Rows.fault = fault
    with pytest.raises(FOUND):
        run_state_machine_as_test(EscrowMachine, settings=SEARCH)


def _set_aside_on_two_connections() -> EscrowMachine:
    """Instance 1 has 8 units in the row of its connection 11, and none in that of 10."""
    machine = EscrowMachine()
    machine.begin()
    machine.claim(20, [1])
    machine.commit_at_home(False)
    machine.claim(10, [8])
    machine.commit_at_home(False)
    machine.end_lease(2, 11)
    own = machine.rows.allotments[10].units
    machine.claim(10, [own])
    machine.commit_alone_of(10)
    assert (machine.rows.allotments[10].units, machine.rows.allotments[11].units) == (0, 8)
    return machine


@pytest.mark.spec("Q9")
@pytest.mark.parametrize("fault", ["", "draws what is not there"])
def test_of_two_connections_that_draw_the_same_units_one_gets_them(fault: str) -> None:
    Rows.fault = fault
    machine = _set_aside_on_two_connections()
    machine.claim(10, [8])
    machine.claim(11, [8])
    leases = len(machine.rows.leases)
    machine.commit_alone_of(11)
    if fault:
        with pytest.raises(AssertionError):
            machine.commit_alone_of(10)
    else:
        machine.commit_alone_of(10)
        machine.every_unit_is_in_one_place()
        assert len(machine.rows.leases) == leases + 1


@pytest.mark.spec("Q9")
@pytest.mark.parametrize("fault", ["", "draws of any era"])
def test_what_was_brought_home_and_given_back_meanwhile_is_not_drawn(fault: str) -> None:
    Rows.fault = fault
    machine = _set_aside_on_two_connections()
    machine.claim(10, [8])
    machine.claim(20, [8, 8, 8])
    machine.commit_at_home(True)
    assert machine.rows.pool.reserved(machine.now)
    machine.end_lease(max(machine.rows.leases), 11)
    assert machine.rows.allotments[11].units == 8, "as many as when it looked"
    if fault:
        with pytest.raises(AssertionError, match="kept for somebody"):
            machine.commit_alone_of(10)
    else:
        leases = dict(machine.rows.leases)
        machine.commit_alone_of(10)
        assert machine.rows.leases == leases
        machine.every_unit_is_in_one_place()


def _own(standing: Standing, instance: int, more: int = 0) -> Capacity:
    units = sum(one.units for one in standing.of_instance(instance))
    return Capacity(standing.freed + units + more, 0, 0, 0, None, 0, 0)


def _own_whatever_is_out(standing: Standing, instance: int, now: int) -> Capacity | None:
    if standing.pool.reserved(now):
        return None
    return _own(standing, instance)


def _own_whoever_waits(standing: Standing, instance: int, now: int) -> Capacity | None:
    if standing.pool.used > standing.pool.total:
        return None
    return _own(standing, instance)


def _own_of_everybody(standing: Standing, instance: int, now: int) -> Capacity | None:
    free = standing.pool.total - standing.pool.used
    return _own(standing, instance, max(0, free))


def _draw_too_little(*asked: Any) -> list[Any]:
    return DRAW(*asked)[:1]


def _draw_past_what_is_freed(standing: Standing, *asked: Any) -> list[Any]:
    return DRAW(msgspec.structs.replace(standing, freed=standing.freed + 1), *asked)


def _deal_too_much(capacity: Capacity, *rest: Any) -> dict[int, int]:
    return {shard: units + 1 for shard, units in DEAL(capacity, *rest).items()}


DRAW, DEAL = escrow.draw, escrow.deal


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("own_capacity", _own_whatever_is_out),
        ("own_capacity", _own_whoever_waits),
        ("own_capacity", _own_of_everybody),
        ("draw", _draw_too_little),
        ("draw", _draw_past_what_is_freed),
        ("deal", _deal_too_much),
        ("gather", lambda pool, _: pool),
    ],
)
def test_a_fault_in_a_decision_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any
) -> None:
    monkeypatch.setattr(escrow, name, wrong)
    with pytest.raises(FOUND):
        run_state_machine_as_test(EscrowMachine, settings=SEARCH)
