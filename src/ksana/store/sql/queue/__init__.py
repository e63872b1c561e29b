"""Queue jobs, their order, leases and capacity in SQL."""

from ksana.store.sql.queue.capacity import SqlCapacity
from ksana.store.sql.queue.changes import SqlGauges, SqlJobChanges
from ksana.store.sql.queue.job_classes import SqlJobClasses
from ksana.store.sql.queue.job_lists import SqlJobLists
from ksana.store.sql.queue.jobs import SqlJobOrder, SqlJobs
from ksana.store.sql.queue.leases import SqlLeases, find_dated_of_job, find_rows_of_lease

TABLES = {
    "jobs": SqlJobs,
    "job_lists": SqlJobLists,
    "job_classes": SqlJobClasses,
    "job_order": SqlJobOrder,
    "job_changes": SqlJobChanges,
    "leases": SqlLeases,
    "capacity": SqlCapacity,
    "gauges": SqlGauges,
}

EVENT_ROWS = {"JOB": ("JOB", find_dated_of_job), "LEASE": ("JOB", find_rows_of_lease)}
