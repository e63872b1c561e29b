"""Every class of faults is provoked by a test or has a reason why not; the table says what was run
and nothing else."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.ground import faults
from tests.ground.faults import FAULTS, NOT_PROVOKED, Provoked, make_table, record

TESTS = Path(__file__).parents[1]
NOW = datetime(2026, 11, 17, tzinfo=UTC)


def test_every_class_has_a_test_or_a_reason() -> None:
    text = "".join(
        line
        for file in TESTS.rglob("test_*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith(("@pytest.mark.fault(", "pytestmark"))
    )
    provoked = {fault for fault in FAULTS if f'"{fault}"' in text}
    assert provoked.isdisjoint(NOT_PROVOKED)
    assert provoked | set(NOT_PROVOKED) == set(FAULTS)


def test_the_table_says_what_passed_failed_and_was_not_run() -> None:
    table = make_table(
        [
            Provoked("F26", "sqlite", "passed"),
            Provoked("F26", "sqlite", "passed"),
            Provoked("F26", "postgres", "failed"),
            Provoked("F30", "sqlite", "skipped"),
        ],
        ["chaos: 7 kills"],
        NOW,
    )
    rows = {line.split(" | ")[0][2:]: line for line in table.splitlines() if line.startswith("| F")}
    assert rows["F26"].endswith("| 2 |  |  | **1 failed** |  |  |")
    assert "1 skipped" in rows["F30"]
    assert "not run (its tests were not in this run)" in rows["F01"]
    assert "1 of 54 classes provoked; 2 passed, 1 failed, 1 skipped." in table
    assert "- chaos: 7 kills" in table


@pytest.mark.parametrize("page", ["reliability.md", "zh/reliability.md"])
def test_a_table_takes_its_place_on_the_page_and_nothing_else_changes(
    page: str, tmp_path: Path
) -> None:
    copy = tmp_path / "page.md"
    text = (faults.DOCS / page).read_text(encoding="utf-8")
    copy.write_text(text, encoding="utf-8")
    record(copy, "the table\n")
    changed = copy.read_text(encoding="utf-8")
    assert "<!-- torture -->\nthe table\n<!-- end -->" in changed
    record(copy, "another\n")
    assert changed.replace("the table", "another") == copy.read_text(encoding="utf-8")
