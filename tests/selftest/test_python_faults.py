"""The tool that puts faults into functions: it makes them, and they are felt."""

import pytest

from ksana.domain import retry
from ksana.domain.retry import Backoff, delay_after
from tests.ground import code
from tests.ground.explained_faults import EXPLAINED
from tests.ground.python_faults import Fault, list_faults, list_modules, put_in_place

BACKOFF = Backoff(initial_delay_us=10, strategy="exponential", max_delay_us=25)


def find(change: str) -> Fault:
    [found] = [one for one in list_faults("ksana.domain.retry") if str(one).endswith(change)]
    return found


@pytest.fixture(autouse=True)
def whole_again() -> object:
    before = delay_after.__code__
    yield
    delay_after.__code__ = before


@pytest.mark.parametrize(
    ("change", "delays"),
    [
        ("== 'exponential' -> backoff.strategy != 'exponential'", [10, 10, 10]),
        ("max(attempt, 1) - 1 -> max(attempt, 1) + 1", [25, 25, 25]),
        ("return delay -> return None", [None, None, None]),
    ],
)
def test_everybody_who_imported_a_function_has_its_fault(
    change: str, delays: list[int | None]
) -> None:
    assert [delay_after(BACKOFF, n, "k") for n in (1, 2, 3)] == [10, 20, 25]
    put_in_place(find(change))
    assert [delay_after(BACKOFF, n, "k") for n in (1, 2, 3)] == delays
    assert retry.delay_after is delay_after


def test_a_fork_tells_what_came_of_it_and_takes_the_fault_with_it() -> None:
    def run() -> str:
        put_in_place(find("return delay -> return None"))
        return str(delay_after(BACKOFF, 1, "k"))

    assert code.in_a_fork(run, 10) == "None"
    assert delay_after(BACKOFF, 1, "k") == 10


def test_a_fault_that_never_ends_is_ended() -> None:
    def run() -> str:
        while True:
            pass

    assert code.in_a_fork(run, 0.2) == "timeout"


def test_tests_are_chosen_by_what_they_call_the_nearest_room_first() -> None:
    calls = frozenset({"m:f"})
    known = {
        "tests/api/a": code.Known(0.1, calls),
        "tests/unit/long": code.Known(code.MOST_SECONDS + 1, calls),
        "tests/unit/b": code.Known(2.0, calls),
        "tests/unit/a": code.Known(1.0, calls),
        "tests/unit/other": code.Known(0.1, frozenset({"m:g"})),
    }
    rooms = ("tests/unit", "tests/api")
    assert code.choose("m:f", known, rooms) == ["tests/unit/a", "tests/unit/b", "tests/api/a"]


def test_every_explained_fault_exists_and_has_a_reason() -> None:
    floors = {name.split(".")[1] for name in EXPLAINED}
    faults = {
        str(fault)
        for floor in floors
        for module in list_modules(floor)
        for fault in list_faults(module)
    }
    assert set(EXPLAINED) - faults == set()
    assert all(reason.strip() for reason in EXPLAINED.values())
