"""Which queue jobs are next, in SQL. The order of claims is an index; nothing here sorts or scans
what waits.

Claims with filters: a class is a set of jobs no filter can tell apart, and has its own index range.
A claim reads the heads of the classes it may take from, so rows that do not match cost nothing,
however many wait.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.classes import JobClass
from ksana.domain.queue.jobs import DueJob, ExpiredClaim, Job, ReadyJob
from ksana.ports.queue.tables import ClaimOutlook
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.queue.jobs import SqlJobs

FEW_CLASSES: Final = 16
"""Up to this many classes a claim looks at the head of each; above it looks at the head of all that
is ready first."""

LOOK: Final = 256
"""Ready jobs of any class looked at before a claim turns to the classes one by one."""

_decode_needs = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlJobClasses:
    """`job_classes`."""

    def __init__(self, session: Session, _: Any) -> None:
        self._session = session

    def enter(self, classes: Sequence[JobClass]) -> None:
        columns = ("id", "addon_id", "job_type", "cost_units", "needs_json")
        rows = [
            (
                kind.id,
                kind.addon_id,
                kind.job_type,
                kind.cost_units,
                msgspec.json.encode(kind.needs).decode(),
            )
            for kind in sorted(classes, key=lambda one: one.id)
        ]
        self._session.run_rows_later("queue.enter_class", columns, rows)

    def list_classes(self) -> list[JobClass]:
        return [
            JobClass(row[0], row[1], row[2], row[3], _decode_needs(row[4]))
            for row in self._session.all("queue.list_classes")
        ]


class SqlJobOrder:
    """The indexes of `scheduler_job_runs` that say who is next."""

    def __init__(self, _: Session, tx: Any) -> None:
        self._jobs: SqlJobs = tx.jobs
        self._now: Instant = tx.now

    def head_turn(self, urgency: int) -> int | None:
        return self._number("queue.head_turn", urgency=urgency)

    def tail_turn(self, urgency: int) -> int | None:
        return self._number("queue.tail_turn", urgency=urgency)

    def key_turn(self, urgency: int, fairness_key: str) -> int | None:
        return self._number("queue.key_turn", urgency=urgency, fairness_key=fairness_key)

    def outlook(self) -> ClaimOutlook:
        row = self._jobs.session.one("queue.claim_outlook", now_at=self._now)
        assert row is not None
        return ClaimOutlook(bool(row[0]), int(row[1]), (int(row[2]), int(row[3])))

    def list_due(self, limit: int) -> list[DueJob]:
        rows = self._jobs.session.all("queue.list_due", now_at=self._now, limit=limit)
        return [DueJob(*row) for row in rows]

    def has_ready(self, class_ids: Sequence[int]) -> bool:
        return bool(self._look(class_ids, 1))

    def take_ready(self, class_ids: Sequence[int] | None, limit: int) -> list[ReadyJob]:
        if limit <= 0:
            return []
        if class_ids is None:
            return self._jobs.session.all_as(ReadyJob, "queue.take_ready", limit=limit)
        if not class_ids:
            return []
        if len(class_ids) == 1:
            return self._take_class(class_ids[0], limit)
        counts = Counter(row[0] for row in self._look(class_ids, limit))
        jobs = [
            job
            for class_id, count in sorted(counts.items())
            for job in self._take_class(class_id, count)
        ]
        return sorted(jobs, key=lambda job: (job.urgency, job.turn, job.seq))

    def _take_class(self, class_id: int, limit: int) -> list[ReadyJob]:
        return self._jobs.session.all_as(
            ReadyJob, "queue.take_class", class_id=class_id, limit=limit
        )

    def _look(self, class_ids: Sequence[int], limit: int) -> list[Row]:
        """The first `limit` places over these classes, unlocked: which to take how many from."""
        if len(class_ids) > FEW_CLASSES:
            width = max(LOOK, 2 * limit)
            wanted = frozenset(class_ids)
            rows = self._jobs.session.all("queue.peek_ready", limit=width)
            found = [row for row in rows if row[0] in wanted]
            if len(found) >= limit or len(rows) < width:
                return found[:limit]
        heads: list[Row] = []
        for class_id in class_ids:
            heads += self._jobs.session.all("queue.peek_class", class_id=class_id, limit=limit)
        heads.sort(key=lambda row: row[1:])
        return heads[:limit]

    def list_expired_claims(self, limit: int) -> list[ExpiredClaim]:
        rows = self._jobs.session.all("queue.list_expired_claims", now_at=self._now, limit=limit)
        return [ExpiredClaim(*row) for row in rows]

    def count_ready(self, limit: int) -> int:
        return self._number("queue.count_ready", limit=limit) or 0

    def count_ready_ahead(self, job: Job, class_ids: Sequence[int], limit: int) -> int:
        found = self._number(
            "queue.count_ready_ahead",
            class_ids=class_ids,
            urgency=job.urgency,
            turn=job.turn,
            seq=job.seq,
            limit=limit,
        )
        return found or 0

    def count_pending_ahead(
        self, job: Job, pending_at: Instant, addon_id: str | None = None
    ) -> int:
        of_one = {} if addon_id is None else {"addon_id": addon_id}
        found = self._number(
            "queue.count_pending_ahead" + ("_of_addon" if of_one else ""),
            job_id=job.job_id,
            urgency=job.urgency,
            pending_at=pending_at,
            seq=job.seq,
            **of_one,
        )
        return found or 0

    def best_pending_urgency(self, besides: str) -> int | None:
        return self._number("queue.best_pending_urgency", job_id=besides)

    def _number(self, name: str, **params: Any) -> int | None:
        row = self._jobs.session.one(name, **params)
        return None if row is None or row[0] is None else int(row[0])
