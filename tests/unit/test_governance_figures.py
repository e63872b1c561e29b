"""Figures of governance: what waits, and how the last hour went."""

from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.instant import HOUR, SECOND
from ksana.ports.governance.tables import DueFigures
from ksana.service.governance.figures import GovernanceMetrics, GovernanceStats
from tests.unit.audit_ground import NOW, AuditBook, BookStore

pytestmark = pytest.mark.spec("G14")


def stats(figures: DueFigures, **counts: int) -> GovernanceStats:
    given = {"succeeded": 0, "failed": 0, "dead": 0, "retried": 0, "pulled": 9, **counts}

    def sum_since(since: int) -> dict[str, int]:
        assert since == NOW - HOUR
        return given

    table: Any = SimpleNamespace(read=lambda: figures, sum_since=sum_since)
    store = BookStore(AuditBook(), governance_figures=table, now=NOW)
    return GovernanceStats(store)  # type: ignore[arg-type]


async def test_rates_are_of_what_ended_and_of_what_was_tried_in_the_last_hour() -> None:
    figures = DueFigures(4, NOW - 3 * SECOND, 5, 6, 7)
    found = await stats(figures, succeeded=6, failed=2, dead=4, retried=10).read()
    assert found == GovernanceMetrics(
        jobs_due_count=4,
        jobs_lag_seconds=3.0,
        job_success_rate=6 / 12,
        job_retry_rate=14 / 20,
        dead_letter_count=7,
        jobs_running_count=5,
        jobs_deferred_count=6,
        window_sec=3600,
        counts={"succeeded": 6, "failed": 2, "dead": 4, "retried": 10, "pulled": 9},
    )


@pytest.mark.parametrize("oldest", [None, NOW, NOW + SECOND])
async def test_where_nothing_is_late_and_nothing_ended_there_is_no_lag_and_no_rate(
    oldest: int | None,
) -> None:
    figures = DueFigures(due=0, oldest_due_at=oldest, running=0, deferred=0, dead_letters=0)
    shown = await stats(figures).snapshot()
    assert (shown["jobs_lag_seconds"], shown["job_success_rate"]) == (0.0, None)
    assert (shown["job_retry_rate"], shown["window_sec"]) == (None, 3600)
