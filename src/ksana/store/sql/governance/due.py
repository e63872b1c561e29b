"""Governance jobs that wait for somebody, in SQL. What a pull reads is an index range: by second
and priority for pulls that take anything, by class for those that take only some kinds or ask for
priority first."""

from collections import Counter
from typing import Any, Final, NamedTuple

from ksana.base.instant import SECOND, Instant
from ksana.domain.governance.records import (
    ACTIONS,
    OBJECT_TYPES,
    PRIORITIES,
    GovernanceJob,
    class_of,
)
from ksana.ports.governance.tables import PullFilter
from ksana.store.sql.core.session import Row, Session

LOOK: Final = 64
"""Due jobs of any class that a pull with a filter looks at before it turns to the classes one by
one."""


class _Head(NamedTuple):
    """A place in the order of a pull."""

    class_no: int
    due_sec: int
    urgency: int
    seq: int


class SqlGovernanceDue:
    """The indexes of `governance_jobs` that say who is next."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def take_due(self, wanted: PullFilter) -> list[GovernanceJob]:
        if wanted.limit <= 0:
            return []
        if not wanted.is_filtered and wanted.order == "run_at":
            return self._session.all_as(
                GovernanceJob,
                "governance.take_due",
                sec=wanted.now // SECOND,
                now_at=wanted.now,
                limit=wanted.limit,
            )
        return self._take_classes(wanted)

    def _take_classes(self, wanted: PullFilter) -> list[GovernanceJob]:
        """Look at the first places of each class, then take as many of each as are in front."""
        counts = Counter(head.class_no for head in self._list_heads(wanted))
        jobs: list[GovernanceJob] = []
        for class_no, count in sorted(counts.items()):
            jobs += self._session.all_as(
                GovernanceJob,
                "governance.take_class",
                class_no=class_no,
                sec=wanted.now // SECOND,
                now_at=wanted.now,
                limit=count,
            )
        place = _by_priority if wanted.order == "priority" else _by_time
        return sorted(jobs, key=lambda job: place(job.run_at // SECOND, job.urgency, job.seq))

    def _list_heads(self, wanted: PullFilter) -> list[_Head]:
        """The first due places over the classes that are wanted, not held."""
        is_urgent_first = wanted.order == "priority"
        place = _by_priority if is_urgent_first else _by_time
        heads: list[_Head] | None = None
        if not self._session.is_embedded:  # where each statement is a way there and back
            heads = self._look(wanted)
        if heads is None:
            heads = []
            for urgency in range(len(PRIORITIES)):
                for class_no in _classes(wanted, urgency):
                    rows = self._peek("governance.peek_class", wanted, class_no=class_no)
                    heads += [_Head(class_no, row[0], urgency, row[1]) for row in rows]
                if is_urgent_first and len(heads) >= wanted.limit:
                    break
        heads.sort(key=lambda head: place(head.due_sec, head.urgency, head.seq))
        return heads[: wanted.limit]

    def _look(self, wanted: PullFilter) -> list[_Head] | None:
        """Those among the first of all that are due; None if more may be wanted behind them."""
        classes = {
            class_no for urgency in range(len(PRIORITIES)) for class_no in _classes(wanted, urgency)
        }
        width = max(LOOK, 2 * wanted.limit)
        rows = [_Head(*row) for row in self._peek("governance.peek_due", wanted, limit=width)]
        heads = [head for head in rows if head.class_no in classes]
        is_all = len(rows) < width
        is_enough = wanted.order == "run_at" and len(heads) >= wanted.limit
        return heads if is_all or is_enough else None

    def _peek(self, statement: str, wanted: PullFilter, **more: int) -> list[Row]:
        return self._session.all(
            statement,
            sec=wanted.now // SECOND,
            now_at=wanted.now,
            **{"limit": wanted.limit, **more},
        )

    def lock_expired(self, limit: int) -> list[GovernanceJob]:
        return self._session.all_as(
            GovernanceJob, "governance.lock_expired", now_at=self._now, limit=limit
        )

    def lock_deferred(self, gate_key: str, limit: int) -> list[GovernanceJob]:
        return self._session.all_as(
            GovernanceJob, "governance.lock_deferred", gate_key=gate_key, limit=limit
        )

    def has_deferred(self, gate_key: str) -> bool:
        return self._session.one("governance.first_deferred", gate_key=gate_key) is not None

    def next_due(self) -> tuple[Instant | None, Instant | None]:
        due = self._session.one("governance.next_due")
        lease = self._session.one("governance.next_lease")
        return (None if due is None else due[0], None if lease is None else lease[0])


def _by_time(due_sec: int, urgency: int, seq: int) -> tuple[int, int, int]:
    return due_sec, urgency, seq


def _by_priority(due_sec: int, urgency: int, seq: int) -> tuple[int, int, int]:
    return urgency, due_sec, seq


def _classes(wanted: PullFilter, urgency: int) -> list[int]:
    return [
        class_of(object_type, action, urgency)
        for object_type in wanted.object_types or OBJECT_TYPES
        for action in wanted.actions or ACTIONS
    ]
