"""Runs that failed for good, as dead letters: a replay is a new run of the same task."""

from collections.abc import Sequence

from ksana.base.errors import KsanaError, NotFoundError
from ksana.domain.dead_letters import LetterRecord
from ksana.engine.tasks.run_writer import SURFACE
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.tasks.tables import TasksTx
from ksana.service.core.dead_letters import LetterSection, Operator, ReplayedLetter
from ksana.service.tasks.definitions import Hints
from ksana.service.tasks.runs import record_replay, run_again


def make_section(hints: Hints, secrets: TaskSecrets = CLEAR) -> LetterSection:
    """The dead letters of tasks."""

    def notify(hosts: Sequence[str]) -> None:
        for host in set(hosts):
            hints.ready(host)

    def replay_runs(
        tx: TasksTx, letters: Sequence[LetterRecord], who: Operator
    ) -> list[ReplayedLetter | KsanaError]:
        """Run each again. The locks on tasks are taken in one order for everybody."""
        outcomes: dict[int, ReplayedLetter | KsanaError] = {}
        for letter in sorted(letters, key=lambda one: int(one.source)):
            outcomes[letter.id] = _replay(tx, letter, who, secrets)
        return [outcomes[letter.id] for letter in letters]

    return LetterSection(
        surface=SURFACE,
        entity_type="RUN",
        replay=replay_runs,
        notify=notify,
        dismissed="RUN_DISMISSED",
    )


def _replay(
    tx: TasksTx, letter: LetterRecord, who: Operator, secrets: TaskSecrets
) -> ReplayedLetter | KsanaError:
    run = tx.runs.find(int(letter.entity_id))
    if run is None:
        return NotFoundError(f"no run has the id {letter.entity_id}")
    try:
        started = run_again(tx, run, secrets)
    except KsanaError as refusal:  # such as a task that was deleted
        return refusal
    record_replay(tx, run, started, who.actor)
    return ReplayedLetter(str(started.run_id), started.host)
