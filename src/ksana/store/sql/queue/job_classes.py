"""Classes of queue jobs in SQL: entered with the jobs that need them, read by what was entered of
late, removed when nobody uses them."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.classes import JobClass
from ksana.ports.retention import OldRows, WalkPlace
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.core.walks import walk_ended

_decode_needs = msgspec.json.Decoder(tuple[str, ...]).decode

_COLUMNS: Final = ("id", "addon_id", "job_type", "cost_units", "needs_json", "used_until")


class SqlJobClasses:
    """`job_classes`. What is entered is gathered: the rows are written at the end of a commit and
    in the order of their ids, so that no two writers wait for each other."""

    flush_order = 101  # the last: whoever holds a class waits for nobody any more

    def __init__(self, session: Session, tx: Any) -> None:
        self._raw = session
        self._jobs = tx.jobs
        self._gauges = tx.gauges
        self._new: dict[int, Row] = {}
        self._kept: dict[int, tuple[Instant, Instant]] = {}
        self.has_gathered = False

    @property
    def _session(self) -> Session:
        """The session, with what was entered before to be seen by what comes next."""
        if self.has_gathered:
            self.flush()
        return self._raw

    def enter(self, classes: Sequence[JobClass], until: Instant) -> None:
        if not classes:
            return
        self._raw.wrote = self.has_gathered = True
        for kind in classes:
            before = self._new.get(kind.id)
            self._new[kind.id] = (
                kind.id,
                kind.addon_id,
                kind.job_type,
                kind.cost_units,
                msgspec.json.encode(kind.needs).decode(),
                until if before is None else max(until, before[5]),
            )
        self._gauges.add(0, 0, 0, len(classes))

    def keep(self, job_seqs: Sequence[int], until: Instant, soon_at: Instant) -> None:
        rows = self._jobs.session.all("queue.list_class_ids", seqs=list(job_seqs))
        self._raw.wrote = self.has_gathered = True
        for row in rows:  # the longest of all that this commit asks for
            before = self._kept.get(row[0], (0, 0))
            self._kept[row[0]] = max(until, before[0]), max(soon_at, before[1])

    def flush(self) -> None:
        """Write what was gathered."""
        new, kept = self._new, self._kept
        self.forget()
        rows = [row for _, row in sorted(new.items())]
        self._raw.run_rows_later("queue.enter_class", _COLUMNS, rows)
        self._raw.run_rows_later(
            "queue.keep_class",
            ("used_until", "soon_at", "id"),
            [(*times, class_id) for class_id, times in sorted(kept.items())],
        )

    def forget(self) -> None:
        """Drop what was gathered."""
        self._new, self._kept, self.has_gathered = {}, {}, False

    def list_classes(self, since: Instant = 0) -> list[JobClass]:
        return [
            JobClass(row[0], row[1], row[2], row[3], _decode_needs(row[4]))
            for row in self._session.all("queue.list_classes", since=since)
        ]

    def count(self, limit: int) -> int:
        row = self._session.one("queue.count_classes", limit=limit)
        assert row is not None
        return int(row[0])

    def find_known(self, ids: Sequence[int]) -> set[int]:
        return {row[0] for row in self._session.all("queue.list_known_classes", ids=sorted(ids))}

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        return walk_ended(self._session, "queue.list_old_classes", before, after, limit)

    def remove(self, ids: Sequence[int], before: Instant) -> int:
        rows = [(class_id, before) for class_id in sorted(ids)]
        return self._session.run_rows("queue.delete_class", ("id", "before"), rows)
