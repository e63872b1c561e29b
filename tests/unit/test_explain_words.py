"""Every reason and event that is written has words."""

import ast
import re
import string
from pathlib import Path
from typing import Any, get_args

import pytest

from ksana.base.instant import SECOND
from ksana.domain import explain
from ksana.domain.explain import EVENTS, PRESENT, RECORDED, WORDS, Fact, reason, tell
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks import records

pytestmark = pytest.mark.spec("B1")


SOURCE = Path(explain.__file__).parents[1]


MADE = 1_767_225_600 * SECOND
"""2026-01-01T00:00:00Z"""


WRITERS = [
    "engine/tasks/firing.py",
    "engine/tasks/recorder.py",
    "engine/tasks/rescue.py",
    "engine/tasks/run_writer.py",
    "service/tasks/definitions.py",
    "service/tasks/runs.py",
    "service/tasks/triggers.py",
    "service/tasks/callbacks.py",
    "domain/tasks/changes.py",
    "domain/tasks/firing.py",
    "domain/tasks/outcome.py",
    "domain/tasks/rescue.py",
]
"""Everything that writes a reason."""


OTHER_WORDS = {
    *RUN.states,
    *get_args(records.ExecType),
    *get_args(records.ConcurrencyPolicy),
    *get_args(records.MisfirePolicy),
    "ENABLED",
    "DISABLED",
    "DELETED",
    "TASK",
    "RUN",
    "LOST",
    "IGNORED",
    "RECEIVED",
    "CAPPED",
    "ALREADY_EXISTS",
    "VERSION_CONFLICT",
    "ILLEGAL_TRANSITION",
}
"""Words in capitals that are no reasons: states, policies, entities, error codes."""


def literals(path: Path) -> set[str]:
    """Every literal in capitals; of one put together from pieces, the first piece."""
    tree = ast.parse(path.read_text())
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {
        text
        for text in found
        if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*_?", text) and len(text) > 2
    }


@pytest.mark.parametrize("name", WRITERS)
def test_every_reason_and_event_that_is_written_has_words(name: str) -> None:
    known = {*RECORDED, *EVENTS, *OTHER_WORDS}
    unknown = {
        text
        for text in literals(SOURCE / name) - known
        if not (text.endswith("_") and any(word.startswith(text) for word in known))
    }
    assert not unknown, "give these words in domain/explain.py"


def test_every_misfire_policy_and_every_end_of_a_run_has_words() -> None:
    assert {f"MISFIRE_{policy}" for policy in get_args(records.MisfirePolicy)} <= set(RECORDED)
    assert {f"RUN_{state}" for state in RUN.states - {"RUNNING"}} <= set(EVENTS)


def test_every_code_that_explain_adds_is_used_and_is_no_recorded_one() -> None:
    used = set().union(
        *(
            literals(SOURCE / "domain" / "tasks" / f"explain_{name}.py")
            for name in ("tasks", "runs")
        )
    )
    assert set(PRESENT) <= used
    assert not set(PRESENT) & set(RECORDED)


@pytest.mark.parametrize("code", sorted(WORDS))
def test_words_are_one_plain_sentence_and_can_be_filled(code: str) -> None:
    names = {name for _, name, _, _ in string.Formatter().parse(WORDS[code]) if name}
    assert not names or code in PRESENT
    words = reason(code, **dict.fromkeys(names, "1")).words
    assert words[0].islower() or words[0].isdigit()
    assert not words.endswith(".")
    assert len(words) < 128


@pytest.mark.parametrize(
    ("event", "data", "words"),
    [
        (
            "TASK_MISFIRED",
            {"count": 3, "first": "F", "last": "L"},
            "3 slots were missed, from F to L",
        ),
        (
            "TASK_CHANGED",
            {"version": 2, "status": "ENABLED"},
            "the task was changed: version 2, ENABLED",
        ),
        ("RUN_FAILED", {"error": "refused"}, "the run failed (refused)"),
        ("RUN_FAILED", {"error": ""}, "the run failed"),
        ("RUN_FAILED", {"error": None}, "the run failed"),
        ("RUN_STARTED", {"reason": "DELETED"}, f"the run was started: {WORDS['DELETED']}"),
    ],
)
def test_an_event_is_told_with_what_matters_of_it(
    event: str, data: dict[str, Any], words: str
) -> None:
    assert tell(Fact(1, MADE, event, data)) == words


def test_a_code_nobody_knows_is_told_as_it_is() -> None:
    assert reason("SOMETHING_NEW").words == "SOMETHING_NEW"
    assert tell(Fact(1, MADE, "RUN_ODD", {"reason": "SOMETHING_NEW"})) == "RUN_ODD: SOMETHING_NEW"
