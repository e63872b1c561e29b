"""What the statements say of states agrees with `domain/lifecycle`: the literals in them are
states, and each move they make is allowed."""

import re

import pytest

from ksana.domain import lifecycle
from ksana.domain.lifecycle import Lifecycle
from ksana.store.sql.core.migrate import list_migrations
from ksana.store.sql.core.statements import read_statements
from tests.ground.guards import Change, list_changes, list_guards, split_outside_brackets

OBJECT = Lifecycle(
    "OBJECT",
    initial=lifecycle.MEMORY.states | lifecycle.EXPERIENCE.states | lifecycle.COGNITION.states,
    final=frozenset(),
    moves=lifecycle.MEMORY.moves + lifecycle.EXPERIENCE.moves + lifecycle.COGNITION.moves,
)
"""Objects of every type lie in one table, each type with its own moves."""

STATES: dict[str, tuple[str, Lifecycle]] = {
    "tasks": ("status", lifecycle.TASK),
    "task_runs": ("status", lifecycle.RUN),
    "scheduler_job_runs": ("state", lifecycle.JOB),
    "past_leases": ("state", lifecycle.LEASE),
    "governance_jobs": ("status", lifecycle.GOV_JOB),
    "governance_objects": ("status", OBJECT),
}
"""The column of each table that holds an entity's state."""

WITHOUT_LIFECYCLE = {"async_callbacks", "dead_letters", "governance_gates"}
"""Tables whose `status` is written once and never moves, or may become anything at any time."""

POSITIONS = {0: {"QUEUED"}, 1: {"QUEUED"}, 2: {"CLAIMED", "PREPARING"}, 3: {"LEASE_PENDING"}}
POSITIONS[4] = {"RUNNING"}
"""The states of a job by its place among the queue's indexes (`position`)."""

_LITERAL = re.compile(r"'([^']*)'")
_INSERT = re.compile(
    r"(?:INSERT INTO|\{insert_ignore\})\s+(\w+)\s*\((.*?)\)\s*"
    r"(?:VALUES\s*\((.*)\)|SELECT\s+(.*?)\sFROM)",
    re.IGNORECASE | re.DOTALL,
)


def with_state() -> list[Change]:
    return [change for change in list_changes() if change.table in STATES]


def assigned(change: Change, column: str) -> str | None:
    """The expression an UPDATE gives to a column."""
    for part in split_outside_brackets(change.sets, ","):
        name, _, expression = part.partition("=")
        if name.strip() == column:
            return expression.strip()
    return None


def guarded_by(change: Change, column: str) -> list[str]:
    """The conditions on a column."""
    begins = re.compile(rf"(?:COALESCE\()?(?:\w+\.)?{column}\b")
    return [one for one in change.conditions if begins.match(one)]


def sources_of(change: Change, column: str) -> set[str] | None:
    """The states a row may have before, as far as literals tell; None if they do not."""
    found = {state for one in guarded_by(change, column) for state in _LITERAL.findall(one)}
    if found - {""}:
        return found - {""}
    for condition in guarded_by(change, "position"):
        if numbers := re.findall(r"(?:=|IN \()\s*([\d, ]+)", condition):
            places = [int(number) for number in numbers[0].split(",")]
            return set().union(*(POSITIONS[place] for place in places))
        if below := re.search(r"<\s*(\d+)", condition):
            return set().union(*(POSITIONS[place] for place in range(int(below[1]))))
    return None


@pytest.mark.spec("X12")
@pytest.mark.parametrize("change", with_state(), ids=lambda change: change.name)
def test_every_state_in_a_change_is_a_state_of_its_entity(change: Change) -> None:
    column, entity = STATES[change.table]
    told = " ".join([assigned(change, column) or "", *guarded_by(change, column)])
    unknown = set(_LITERAL.findall(told)) - entity.states - {""}
    assert not unknown, f"{change.name} names {unknown}, which {entity.entity} does not have"


@pytest.mark.spec("X12")
@pytest.mark.parametrize("change", with_state(), ids=lambda change: change.name)
def test_every_move_a_change_makes_is_allowed(change: Change) -> None:
    column, entity = STATES[change.table]
    to = assigned(change, column)
    if to is None:
        return
    sources = sources_of(change, column)
    if sources is None:
        # The writer was told both states, or the row's token: it has asked the lifecycle itself.
        guards = " ".join(change.conditions)
        assert re.search(rf"\b{column}\s*=\s*:|\btoken\s*=\s*:|\bversion\s*=\s*:", guards), (
            f"{change.name} sets {column} and no guard says from which state"
        )
        return
    for target in _LITERAL.findall(to):
        for source in sources - {target}:
            assert entity.allows(source, target), f"{change.name} moves {source} to {target}"


@pytest.mark.spec("X12")
def test_rows_are_entered_in_an_initial_state() -> None:
    looked_at = set()
    for name, text, _ in read_statements():
        found = _INSERT.match(text)
        if found is None or found[1] not in STATES:
            continue
        column, entity = STATES[found[1]]
        columns = [one.strip() for one in found[2].split(",")]
        values = split_outside_brackets(found[3] or found[4], ",")
        value = values[columns.index(column)]
        looked_at.add(found[1])
        for state in _LITERAL.findall(value):
            assert state in entity.initial, f"{name} enters {state}"
    assert looked_at >= {"scheduler_job_runs", "task_runs"}


def test_no_table_with_a_state_is_left_out() -> None:
    made: set[str] = set()
    for migration in list_migrations():
        for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", migration.text, re.DOTALL):
            if re.search(r"^\s*(state|status) ", body, re.MULTILINE):
                made.add(table)
        for old, new in re.findall(r"ALTER TABLE (\w+) RENAME TO (\w+)", migration.text):
            made = {new if table == old else table for table in made}
    assert made - WITHOUT_LIFECYCLE == set(STATES)


def test_the_guards_are_found() -> None:
    guards = list_guards()
    assert len(guards) >= 50
    for guard in guards:
        assert guard.take_out() != guard.change.text
