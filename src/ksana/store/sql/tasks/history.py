"""The past of tasks and runs: bounded reads by index for explain, and removal in small batches for
retention."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.explain import Fact
from ksana.domain.tasks.records import Options, Run
from ksana.ports.events import Event, Events
from ksana.ports.retention import OldRows, WalkPlace
from ksana.ports.tasks.history import Miscount
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.core.tx import CORRECTIONS
from ksana.store.sql.tasks.runs import KIND

LOOK_THROUGH: Final = 20_000
"""Runs of one task looked at for surplus beyond those it keeps."""

_WINDOWS: Final = 20
"""Windows of the oldest runs that one look goes through for something to remove."""

_decode_options = msgspec.json.Decoder(Options).decode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class SqlHistory:
    """The history as one transaction sees it."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._counts = tx.row_counts
        self._events: Events = tx.events

    def find_event_id_at(self, at: Instant) -> int:
        return self._events.find_id_at(at + 1)

    def list_events_down(
        self, entity_type: str, entity_id: int, upto: int, limit: int
    ) -> list[Fact]:
        found = self._events.list_after(
            0, limit, entity_type, str(entity_id), before=upto + 1, is_newest_first=True
        )
        return [_fact(event) for event in found]

    def list_events_up(
        self, entity_type: str, entity_id: int, after: int, limit: int
    ) -> list[Fact]:
        found = self._events.list_after(after, limit, entity_type, str(entity_id))
        return [_fact(event) for event in found]

    def count_before(self, run: Run, limit: int) -> int:
        if run.ready_host is not None:
            return self._count(
                "history.count_ready_before", host=run.ready_host, id=run.id, limit=limit
            )
        return self._count(
            "history.count_waiting_before", task_id=run.task_id, id=run.id, limit=limit
        )

    def find_lease_until(self, instance_id: str) -> Instant | None:
        row = self._session.one("history.lease_of", id=instance_id)
        return None if row is None else int(row[0])

    def count_alive(self) -> int:
        return self._count("history.count_alive")

    def list_limits(self, after: int, limit: int) -> list[tuple[int, int]]:
        rows = self._session.all("history.list_limits", after=after, limit=limit)
        return [(int(row[0]), _decode_options(row[1]).history_limit) for row in rows]

    def list_surplus(self, task_id: int, keep: int, limit: int) -> list[int]:
        row = self._session.one(
            "history.newest_surplus", task_id=task_id, keep=keep, look=keep + LOOK_THROUGH
        )
        if row is None:
            return []
        rows = self._session.all(
            "history.list_surplus", task_id=task_id, upto=row[0], look=LOOK_THROUGH, limit=limit
        )
        return [int(row[0]) for row in rows]

    def remove_runs(self, run_ids: Sequence[int]) -> int:
        rows = self._session.all("history.lock_removable", ids=sorted(run_ids))
        for status, count in Counter(row[1] for row in rows).items():
            self._counts.add(KIND, status, -count)
        ids = [(run_id,) for run_id in sorted(row[0] for row in rows)]
        removed = self._session.run_rows("history.delete_run", ("id",), ids)
        self._session.run_rows("history.delete_callbacks", ("id",), ids)
        return removed

    def find_old_runs(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        last = after[1]
        for _ in range(_WINDOWS):
            rows = self._session.all("history.oldest_runs", after=last, limit=limit)
            # Those at the end that are merely young are not passed over: soon they are old.
            passed = len(rows)
            while passed and rows[passed - 1][1] >= before:
                passed -= 1
            is_end = passed < limit
            if passed:
                last = rows[passed - 1][0]
            if (old := _ended(rows[:passed], before)) or is_end:
                return OldRows(old, (0, last), is_end=is_end)
        return OldRows([], (0, last), is_end=False)

    def find_miscounts(self) -> list[Miscount]:
        rows = self._session.all("history.compare_counts", shard=CORRECTIONS)
        return [Miscount(kind, entry, int(by), int(seen)) for kind, entry, by, seen in rows]

    def correct_counts(self, miscounts: Sequence[Miscount]) -> int:
        done = 0
        for kind, entry, by, seen in miscounts:
            share = {"kind": kind, "entry": entry, "shard": CORRECTIONS}
            self._session.run("history.enter_correction", **share)
            done += self._session.run("history.correct_count", n=seen + by, seen=seen, **share)
        return done

    def _count(self, statement: str, **params: Any) -> int:
        row = self._session.one(statement, **params)
        return 0 if row is None else int(row[0])


def _ended(rows: Sequence[Row], before: Instant) -> list[int]:
    """The runs among them that ended before and are no dead letters."""
    return [
        run_id
        for run_id, _, end_time, open_task, is_dead in rows
        if open_task is None and not is_dead and end_time is not None and end_time < before
    ]


def _fact(event: Event) -> Fact:
    return Fact(event.id, event.ts, event.type, _decode(event.data))
