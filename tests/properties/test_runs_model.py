"""Runs against a model of what must always hold: any order of firings, triggers, answers,
callbacks, cancels, deaths and restarts, checked after every step; in the end nothing is stuck."""

from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from ksana.base.instant import Instant
from ksana.domain.tasks import firing as firing_rules
from ksana.domain.tasks import outcome
from ksana.domain.tasks import rescue as rescue_rules
from ksana.domain.tasks.records import RetryPolicy, Run
from ksana.engine.tasks import run_writer
from ksana.service.tasks import callbacks as callbacks_service
from ksana.store.sql.tasks.run_due import SqlRunDue
from tests.properties.runs_model import RunsMachine

DECIDE_OUTCOME, WRITE_CHANGES = outcome.decide_outcome, run_writer.write_changes


TestRunsModel = pytest.mark.spec("C10", "C11", "C12", "C14", "C18", "C19", "C23")(
    RunsMachine.TestCase
)


TestRunsModel.settings = RunsSettings = settings(
    max_examples=25, stateful_step_count=30, deadline=None
)


def start_always(*_: Any) -> tuple[str, str]:
    return "start", "BELOW_LIMIT"


def one_retry_too_many(verdict: Any, policy: RetryPolicy, *rest: Any, **more: Any) -> Any:
    wrong = msgspec.structs.replace(policy, max_retries=policy.max_retries + 1)
    return DECIDE_OUTCOME(verdict, wrong, *rest, **more)


def retry_whatever_the_task_says(_: Any, run: Run, now: Instant) -> tuple[Instant, str]:
    return now, "ORPHANED_RETRY_LEFT"


def find_nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def never_a_misfire(*_: Any) -> bool:
    return False


def promote_nobody(*_: Any) -> set[str]:
    return set()


def write_without_an_event(tx: Any, changes: Any, **more: Any) -> Any:
    silent = [msgspec.structs.replace(change, event="") for change in changes]
    return WRITE_CHANGES(tx, silent, **more)


FAULTS: dict[str, list[tuple[Any, str, Any]]] = {
    "runs overlap": [(firing_rules, "admit", start_always)],
    "one retry too many": [(outcome, "decide_outcome", one_retry_too_many)],
    "waiting runs are never promoted": [
        (run_writer, "promote_waiting", promote_nobody),
        (SqlRunDue, "list_stalled", find_nothing),
    ],
    "orphans are forgotten": [(SqlRunDue, "list_orphans", find_nothing)],
    "an outage is made up slot by slot": [(firing_rules, "is_misfire", never_a_misfire)],
    "an orphan is sent again at most once": [
        (rescue_rules, "_judge_orphan", retry_whatever_the_task_says)
    ],
    "retries and deadlines are never looked at": [(SqlRunDue, "list_wakes", find_nothing)],
    "a callback's change leaves no event": [
        (callbacks_service, "write_changes", write_without_an_event)
    ],
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_model_finds_a_fault_put_in_on_purpose(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name, wrong in FAULTS[fault]:
        monkeypatch.setattr(owner, name, wrong)
    # Longer than above: it ends with the first find, and which examples come depends on the text of
    # this very file.
    longer = settings(
        RunsSettings,
        max_examples=400,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises((AssertionError, BaseExceptionGroup, pytest.fail.Exception)):
        run_state_machine_as_test(RunsMachine, settings=longer)
