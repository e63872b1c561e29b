"""Which tasks fire, and how long their runs took, for the forecast."""

from typing import Any

import msgspec

from ksana.base.instant import Micros
from ksana.domain.schedule import Schedule
from ksana.domain.tasks.forecast import ArmedTask
from ksana.domain.tasks.records import Options, host_of
from ksana.store.sql.core.session import Row, Session

_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_options = msgspec.json.Decoder(Options).decode
_NEWEST = 2**62


class SqlArmedTasks:
    """The tasks as one transaction sees them."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def list_armed(self, after: int, limit: int) -> tuple[list[ArmedTask], int | None]:
        found = self._session.all("ledger.list_task_ids", after=after, limit=limit)
        if not found:
            return [], None
        rows = self._session.all("forecast.list_armed", ids=[row[0] for row in found])
        return [_read(row) for row in rows], int(found[-1][0]) if len(found) == limit else None

    def list_durations(self, task_id: int, limit: int) -> list[Micros]:
        rows = self._session.all(
            "forecast.list_durations", task_id=task_id, before=_NEWEST, limit=limit
        )
        return [max(0, int(row[1]) - int(row[0])) for row in rows]


def _read(row: Row) -> ArmedTask:
    task_id, job_id, name, schedule, url, options, next_slot_at, runs_fired = row
    left = None
    host = host_of(url) if url else ""
    if not url or "max_runs" in options:
        read = _decode_options(options)
        host = host or f"@{read.type}"
        left = None if read.max_runs is None else max(0, read.max_runs - runs_fired)
    return ArmedTask(task_id, job_id, name, _decode_schedule(schedule), host, next_slot_at, left)
