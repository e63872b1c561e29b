"""Connections, statements, group commit and the tables of the core."""

from ksana.store.sql.core.idempotency import SqlIdempotency
from ksana.store.sql.core.series import SqlSeries
from ksana.store.sql.core.tables import SqlInstances, SqlKeys, SqlLocks, SqlMarks

TABLES = {
    "instances": SqlInstances,
    "locks": SqlLocks,
    "keys": SqlKeys,
    "marks": SqlMarks,
    "idempotency": SqlIdempotency,
    "series": SqlSeries,
}
