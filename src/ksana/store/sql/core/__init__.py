"""Connections, statements, group commit and the tables of the core."""

from ksana.store.sql.core.dead_letters import SqlDeadLetters
from ksana.store.sql.core.handover import SqlHandoverEnds
from ksana.store.sql.core.idempotency import SqlIdempotency
from ksana.store.sql.core.tables import (
    SqlClockSteps,
    SqlFacts,
    SqlInstances,
    SqlKeys,
    SqlLocks,
    SqlMarks,
)
from ksana.store.sql.core.tx import SqlRowCounts, SqlSeries

TABLES = {
    "instances": SqlInstances,
    "locks": SqlLocks,
    "clock_steps": SqlClockSteps,
    "keys": SqlKeys,
    "marks": SqlMarks,
    "facts": SqlFacts,
    "idempotency": SqlIdempotency,
    "dead_letters": SqlDeadLetters,
    "row_counts": SqlRowCounts,
    "series": SqlSeries,
    "handover_ends": SqlHandoverEnds,
}
