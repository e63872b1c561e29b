"""How many rows of the queue go into one statement: new jobs as tuples, and statements with a fixed
number of places."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from ksana.domain.queue.jobs import Job
from ksana.store.sql.core.session import Row, Session

_One = TypeVar("_One")

AMONG: Final = 50
"""CallSlots in the statements that look up or change many rows at once."""

FEW_ROWS: Final = 6
"""Up to this many rows are changed one by one: a statement with fifty places costs more than that
to bind."""


JOB_COLUMNS: Final = (
    "job_id",
    "addon_id",
    "job_type",
    "priority",
    "cost_units",
    "constraints_json",
    "payload_json",
    "max_attempts",
    "now_at",
    "run_at",
    "fairness_key",
    "client_request_id",
    "lane",
    "urgency",
    "line_id",
    "turn",
    "due_at",
)
"""What a new job is written with."""


def job_row(job: Job) -> Row:
    """A new job's values, in the order of its columns."""
    return (
        job.job_id,
        job.addon_id,
        job.job_type,
        job.priority,
        job.cost_units,
        job.constraints_json,
        job.payload_json,
        job.max_attempts,
        job.created_at,
        job.run_at,
        job.fairness_key,
        job.client_request_id,
        job.lane,
        job.urgency,
        job.line_id,
        job.turn,
        job.due_at,
    )


def change_among(
    session: Session,
    name: str,
    words: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    same: Mapping[str, Any],
) -> int:
    """Change many rows with a statement that has a fixed number of places; unused ones repeat the
    first row."""
    count = 0
    for start in range(0, len(rows), AMONG):
        part = _filled(rows[start : start + AMONG])
        count += session.run_places(name, same, words, list(zip(*part, strict=True)))
    return count


def among(session: Session, name: str, ids: Sequence[str]) -> list[Row]:
    """Look up many ids with a statement that has a fixed number of places."""
    rows: list[Row] = []
    for start in range(0, len(ids), AMONG):
        rows += session.all_places(name, ("id",), [_filled(ids[start : start + AMONG])])
    return rows


def _filled(part: Sequence[_One]) -> Sequence[_One]:
    return part if len(part) == AMONG else [*part, *[part[0]] * (AMONG - len(part))]
