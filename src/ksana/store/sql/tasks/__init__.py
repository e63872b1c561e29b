"""Tasks, runs and their history in SQL."""

from ksana.store.sql.tasks.definitions import SqlTasks
from ksana.store.sql.tasks.history import SqlHistory
from ksana.store.sql.tasks.runs import SqlRuns

TABLES = {"tasks": SqlTasks, "runs": SqlRuns, "history": SqlHistory}
