"""Jobs, leases and capacity in SQL."""

from ksana.store.sql.queue.counts import SqlCounts
from ksana.store.sql.queue.jobs import SqlQueue
from ksana.store.sql.queue.leases import SqlLeases

TABLES = {"queue": SqlQueue, "leases": SqlLeases, "counts": SqlCounts}
