"""The tool that puts faults into functions: it makes them, and they are felt."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.domain import retry
from ksana.domain.retry import Backoff, delay_after
from tests.ground import code, forks
from tests.ground.code_map import Known
from tests.ground.explained import EXPLAINED
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

    assert forks.in_a_fork(run, 10) == "None"
    assert delay_after(BACKOFF, 1, "k") == 10


def test_a_fork_leaves_the_files_of_another_where_they_are(tmp_path: Path) -> None:
    ignore: Any = print
    folder = tmp_path / "base"
    factory = pytest.TempPathFactory(folder, 3, "all", ignore, _ispytest=True)
    config: Any = SimpleNamespace(_tmp_path_factory=factory)
    code.make_folder(config)
    (folder / "of another").touch()
    assert forks.in_a_fork(lambda: str(factory.getbasetemp()), 10) == str(folder)
    assert (folder / "of another").exists()


def test_a_fault_that_never_ends_is_ended_by_either_clock() -> None:
    def run() -> str:
        while True:
            pass

    assert forks.in_a_fork(run, 0.2) == "timeout"
    assert forks.in_a_fork(run, 60, cpu_seconds=0.5) == "timeout"


def fault_at(first: int, last: int) -> Fault:
    fault = find("return delay -> return None")
    return fault._replace(module="m", first=first, last=last, begins=5, ends=20)


def test_tests_are_chosen_by_the_lines_they_run_the_nearest_room_first() -> None:
    lines = {"m": 1 << 7}
    known = {
        "tests/api/a": Known(0.1, 0.1, lines),
        "tests/unit/long": Known(code.MOST_SECONDS + 1, 0.1, lines),
        "tests/unit/b": Known(2.0, 0.1, lines),
        "tests/unit/a": Known(1.0, 0.1, lines),
        "tests/unit/moved": Known(0.5, 0.1, {"m": -1}),
        "tests/unit/beside": Known(0.1, 0.1, {"m": 1 << 5 | 1 << 9}),
        "tests/unit/other": Known(0.1, 0.1, {"n": 1 << 7}),
    }
    rooms = ("tests/unit", "tests/api")
    # First one for each way through the function, then the others.
    near = ["tests/unit/moved", "tests/unit/a", "tests/unit/b", "tests/api/a"]
    assert code.choose(fault_at(6, 8), known, rooms) == near
    killers = ["tests/api/a", "tests/unit/b"]
    assert code.choose(fault_at(7, 7), known, rooms, killers=killers)[:2] == killers
    assert code.choose(fault_at(8, 8), known, rooms) == ["tests/unit/moved"]


def test_a_test_with_many_cases_does_not_take_the_turn_of_others() -> None:
    known = {f"tests/unit/many[{n}]": Known(0.1, 0.1, {"m": 1 << 7}) for n in range(9)}
    known["tests/unit/one"] = Known(0.2, 0.1, {"m": 1 << 7})
    assert code.choose(fault_at(7, 7), known, ("tests/unit",))[code.ALIKE] == "tests/unit/one"


def test_each_way_through_a_function_has_its_turn() -> None:
    known = {f"tests/unit/{n}": Known(0.1 + n / 100, 0.1, {"m": 1 << 7}) for n in range(9)}
    known["tests/unit/refused"] = Known(1.0, 0.1, {"m": 1 << 7 | 1 << 8})
    known["tests/unit/elsewhere"] = Known(1.0, 0.1, {"m": 1 << 7 | 1 << 40})
    chosen = code.choose(fault_at(7, 7), known, ("tests/unit",))
    assert chosen[:3] == ["tests/unit/0", "tests/unit/refused", "tests/unit/1"]
    assert chosen[-1] == "tests/unit/elsewhere"


def test_a_fault_lies_within_the_lines_of_its_statement() -> None:
    for fault in list_faults("ksana.domain.retry"):
        assert fault.begins < fault.first <= fault.line <= fault.last <= fault.ends


def test_a_choice_is_spread_over_all_files() -> None:
    [faults] = code.choose_faults(["client"], 200, 1).values()
    assert len(faults) == len(set(faults)) == 200
    counts = {module: len(list_faults(module)) for module in list_modules("client")}
    large = {module for module, count in counts.items() if count > 2 * sum(counts.values()) / 200}
    assert large <= {fault.module for fault in faults}


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
