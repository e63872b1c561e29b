"""The tour of the code: every name on it exists, and its counts are right."""

import re
from importlib import import_module
from typing import Any

import pytest

from tests.ground.walks import TOUR, WALKS, replace_walk

PAGE = TOUR.read_text(encoding="utf-8")
DOTTED = re.compile(r"`(ksana(?:\.\w+)+)`")
ROW = re.compile(r"^\| `(ksana(?:\.\w+)+)` \| (.+) \|$", re.MULTILINE)
COUNTS = re.compile(r"^(\d+) functions in (\d+) files; [^\d]+ (\d+) in (\d+)\.$", re.MULTILINE)
CORE = re.compile(r"ksana\.(base|boot|[a-z.]+\.core)\b")


def find(name: str) -> Any:
    """The module, class or function of a dotted name. Raise if there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


def walk_of(name: str) -> str:
    begin, end = f"<!-- walk {name}: begin -->", f"<!-- walk {name}: end -->"
    return PAGE.partition(begin)[2].partition(end)[0]


@pytest.mark.parametrize("name", sorted(set(DOTTED.findall(PAGE))))
def test_what_the_tour_names_exists(name: str) -> None:
    assert find(name) is not None


def test_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        find("ksana.engine.core.pump.Pump.no_such_step")
    with pytest.raises(AttributeError):
        find("ksana.engine.core.no_such_module")


@pytest.mark.parametrize("name", list(WALKS))
def test_every_step_of_a_walk_is_a_function_that_exists(name: str) -> None:
    rows = ROW.findall(walk_of(name))
    assert rows, "run make walks"
    missing = []
    steps = [(module, step) for module, cell in rows for step in re.findall(r"`([^`]+)`", cell)]
    for module, step in steps:
        try:
            found = find(f"{module}.{step}")
        except AttributeError:
            found = None
        if not (callable(found) or isinstance(found, property)):
            missing.append(f"{module}.{step}")
    assert not missing, "\n  " + "\n  ".join(missing)
    own = [step for step in steps if not CORE.match(step[0])]
    counts = (len(steps), len(rows), len(own), len({module for module, _ in own}))
    assert COUNTS.findall(walk_of(name)) == [tuple(map(str, counts))]


def test_a_walk_is_replaced_in_its_place() -> None:
    page = replace_walk(PAGE, "claim", "new")
    assert "<!-- walk claim: begin -->\n\nnew\n\n<!-- walk claim: end -->" in page
    assert len(page.splitlines()) < len(PAGE.splitlines())
