"""Tasks, runs and their history in SQL."""

from ksana.store.sql.tasks.definitions import SqlTaskDue, SqlTasks
from ksana.store.sql.tasks.forecast import SqlArmedTasks
from ksana.store.sql.tasks.history import SqlHistory
from ksana.store.sql.tasks.ledger import SqlSlotLedger
from ksana.store.sql.tasks.run_due import SqlRunDue
from ksana.store.sql.tasks.run_lists import SqlRunLists
from ksana.store.sql.tasks.runs import SqlRunChanges, SqlRuns, find_dated_of_run
from ksana.store.sql.tasks.seals import SqlTaskSeals
from ksana.store.sql.tasks.task_lists import SqlTaskLists

TABLES = {
    "tasks": SqlTasks,
    "task_lists": SqlTaskLists,
    "task_due": SqlTaskDue,
    "runs": SqlRuns,
    "run_lists": SqlRunLists,
    "run_due": SqlRunDue,
    "run_changes": SqlRunChanges,
    "history": SqlHistory,
    "task_seals": SqlTaskSeals,
    "slot_ledger": SqlSlotLedger,
    "armed_tasks": SqlArmedTasks,
}

EVENT_ROWS = {"RUN": ("RUN", find_dated_of_run)}
