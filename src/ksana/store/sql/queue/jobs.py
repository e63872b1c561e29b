"""Queue jobs in SQL: entered and read, and who of them is next."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.jobs import DueJob, ExpiredClaim, Job, ReadyJob
from ksana.domain.queue.turns import TAIL
from ksana.ports.pages import MAX_PAGE_BYTES
from ksana.ports.queue.tables import (
    ClaimOpening,
    ClaimOutlook,
    Line,
    QueueDue,
    Request,
    SubmitOpening,
)
from ksana.ports.retention import OldRows, WalkPlace
from ksana.store.sql.core.session import Question, Row, Session
from ksana.store.sql.core.walks import walk_ended
from ksana.store.sql.queue.capacity import SqlCapacity
from ksana.store.sql.queue.claim_ahead import ClaimAhead

_COLUMNS: Final = (
    "job_id",
    "addon_id",
    "job_type",
    "priority",
    "cost_units",
    "constraints_json",
    "payload_json",
    "state",
    "attempts",
    "max_attempts",
    "created_at",
    "updated_at",
    "run_at",
    "fairness_key",
    "client_request_id",
    "cancel_requested",
    "position",
    "urgency",
    "class_id",
    "turn",
    "due_at",
)

_KEY_COLUMNS: Final = ("job_id", "addon_id", "job_type", "created_at", "client_request_id")
_KEY_OF: Final = itemgetter(*(_COLUMNS.index(name) for name in _KEY_COLUMNS))
"""The values of a new job's keys, from its row."""

_REQUEST: Final = ("addon_id", "client_request_id")
_LINE: Final = ("urgency", "fairness_key")
_URGENCY: Final = _COLUMNS.index("urgency")
_AT_TAIL: Final = "queue.insert_job_at_tail"


def _row_of(job: Job) -> Row:
    """A new job's values, in the order of its columns."""
    return (
        job.job_id,
        job.addon_id,
        job.job_type,
        job.priority,
        job.cost_units,
        job.constraints_json,
        job.payload_json,
        job.state,
        job.attempts,
        job.max_attempts,
        job.created_at,
        job.created_at,
        job.run_at,
        job.fairness_key,
        job.client_request_id,
        job.cancel_requested,
        job.position,
        job.urgency,
        job.class_id,
        job.turn,
        job.due_at,
    )


class SqlJobs:
    """`scheduler_job_runs`."""

    flush_order = 0

    def __init__(self, session: Session, tx: Any) -> None:
        self._raw = session
        self._new: list[Row] = []
        self.has_gathered = False
        self._now: Instant = tx.now
        self.ahead: ClaimAhead | None = None
        """What an expected claim opens with, until a job becomes ready or is taken."""

    @property
    def session(self) -> Session:
        """The session, with every job entered before to be seen by what comes next. The other
        tables over jobs go by it too."""
        if self.has_gathered:
            self.flush()
        return self._raw

    def insert(self, jobs: Sequence[Job], *, once: bool, is_checked: bool = False) -> int:
        rows, self.ahead = [_row_of(job) for job in jobs], None
        if len(jobs) == 1 and jobs[0].turn == TAIL:
            return self._insert_at_tail(rows[0])
        if once:
            return self._insert_once(rows, is_checked)
        # Nothing can refuse these: those of all functions of one commit are written together.
        self._raw.wrote = self.has_gathered = True
        self._new += rows
        return len(rows)

    def _insert_once(self, rows: Sequence[Row], is_checked: bool) -> int:
        session = self.session
        if not session.has_keys:
            return self._run_once("queue.insert_job_once", _COLUMNS, rows, is_checked)
        keys = list(map(_KEY_OF, rows))
        entered = self._run_once("queue.enter_keys_once", _KEY_COLUMNS, keys, is_checked)
        if entered == len(rows):
            session.run_rows_later("queue.insert_job", _COLUMNS, rows)
        return entered

    def _insert_at_tail(self, row: Row) -> int:
        """Over a network nothing is read: the database finds the turn, and fails the transaction
        if the job was submitted before."""
        session = self.session
        if session.is_embedded:
            return session.run_rows(_AT_TAIL, _COLUMNS, [row])
        if session.has_keys:
            session.run_later(_AT_TAIL, **dict(zip(_COLUMNS, row, strict=True)))
        else:
            session.run_later("queue.note_tail", urgency=row[_URGENCY])
            session.contend_rows(_AT_TAIL, _COLUMNS, [row])
        return 1

    def _run_once(
        self, name: str, columns: tuple[str, ...], rows: Sequence[Row], is_checked: bool
    ) -> int:
        if is_checked and not self._raw.is_embedded:
            self._raw.contend_rows(name, columns, rows)
            return len(rows)
        return self._raw.run_rows(name, columns, rows)

    def flush(self) -> None:
        """Write the jobs that were gathered."""
        rows, self._new, self.has_gathered = self._new, [], False
        if self._raw.has_keys:
            keys = list(map(_KEY_OF, rows))
            self._raw.run_rows_later("queue.enter_keys", _KEY_COLUMNS, keys)
        self._raw.run_rows_later("queue.insert_job", _COLUMNS, rows)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._new, self.has_gathered = [], False

    def find_job(self, job_id: str) -> Job | None:
        row = self.session.one("queue.find_job", job_id=job_id)
        return None if row is None else Job(*row)

    def find_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        rows = self.session.all("queue.find_jobs", ids=sorted(job_ids))
        return {row[1]: Job(*row) for row in rows}

    def open_submit(self, requests: Sequence[Request], lines: Sequence[Line] = ()) -> SubmitOpening:
        urgencies = dict.fromkeys([urgency for urgency, _ in lines])
        keyed = [line for line in lines if line[1] is not None]
        heads = dict.fromkeys([urgency for urgency, _ in keyed])
        named = [dict(zip(_REQUEST, one, strict=True)) for one in requests]
        questions: list[Question] = [
            *(("queue.find_job_by_request", one) for one in named),
            *(("queue.tail_turn", {"urgency": one}) for one in urgencies),
            *(("queue.head_turn", {"urgency": one}) for one in heads),
            *(("queue.key_turn", dict(zip(_LINE, one, strict=True))) for one in keyed),
        ]
        answers = self.session.ask(questions) if questions else []
        turns = iter([rows[0][0] if rows else None for rows in answers[len(requests) :]])
        return SubmitOpening(
            {key: Job(*rows[0]) for key, rows in zip(requests, answers, strict=False) if rows},
            {urgency: next(turns) for urgency in urgencies},
            {urgency: next(turns) for urgency in heads},
            {line: next(turns) for line in keyed},
        )

    def lock_job(self, job_id: str) -> tuple[Job, bool] | None:
        row = self.session.one("queue.lock_job", job_id=job_id)
        return None if row is None else (Job(*row[:-1]), bool(row[-1]))

    def lock_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        rows = self.session.all("queue.lock_jobs", ids=sorted(job_ids))
        return {row[1]: Job(*row) for row in rows}

    def next_due(self) -> QueueDue:
        row = self.session.one("queue.next_due")
        assert row is not None
        return QueueDue(*row)

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        return walk_ended(self.session, "queue.list_finished", before, after, limit)

    def remove(self, seqs: Sequence[int]) -> int:
        keys = [(seq,) for seq in sorted(seqs)]
        removed = self.session.run_rows("queue.delete_job", ("seq",), keys)
        self._raw.run_rows("queue.delete_leases", ("job_seq",), keys)
        if self._raw.has_keys:
            self._raw.run_rows("queue.delete_keys", ("seq",), keys)
        return removed

    def find_addons(self, seqs: Sequence[int]) -> dict[int, str]:
        return dict(self.session.all("queue.list_addons", seqs=list(seqs)))


FEW_CLASSES: Final = 16
"""Up to this many classes a claim looks at the head of each; above it looks at the head of all that
is ready first."""

LOOK: Final = 256
"""Ready jobs of any class looked at before a claim turns to the classes one by one."""


class SqlJobOrder:
    """The indexes of `scheduler_job_runs` that say who is next."""

    def __init__(self, _: Session, tx: Any) -> None:
        self._jobs: SqlJobs = tx.jobs
        self._capacity: SqlCapacity = tx.capacity
        self._now: Instant = tx.now

    def head_turn(self, urgency: int) -> int | None:
        return self._number("queue.head_turn", urgency=urgency)

    def tail_turn(self, urgency: int) -> int | None:
        return self._number("queue.tail_turn", urgency=urgency)

    def key_turn(self, urgency: int, fairness_key: str) -> int | None:
        return self._number("queue.key_turn", urgency=urgency, fairness_key=fairness_key)

    def outlook(self) -> ClaimOutlook:
        return self._outlook_of(self._jobs.session.one("queue.claim_outlook", now_at=self._now))

    def open_claim(
        self, class_id: int | None, limit: int, total: int | None, is_held: bool
    ) -> ClaimOpening:
        session = self._jobs.session
        if session.is_embedded:
            capacity = None if total is None else self._capacity.lock(total)
            classes = None if class_id is None else (class_id,)
            row = session.one("queue.claim_outlook", now_at=self._now)
            return ClaimOpening(self._outlook_of(row), self.take_ready(classes, limit), capacity)
        held = None
        if is_held and total is not None:
            held = self._capacity.lock(total)
        ahead, self._jobs.ahead = self._jobs.ahead, None
        with_units = total is not None and held is None
        wanted = ClaimAhead(class_id, limit, self._now, with_units=with_units)
        if ahead is None or not ahead.is_asked or ahead != wanted:
            ahead = wanted
            ahead.ask(session)
        return ClaimOpening(
            self._outlook_of(ahead.outlook),
            self._with_payloads(ahead.taken),
            held,
            self._capacity.standing_of(total, [ahead.pool], ahead.allotments)
            if total is not None and ahead.with_units
            else None,
        )

    def _outlook_of(self, row: Row | None) -> ClaimOutlook:
        assert row is not None
        return ClaimOutlook(bool(row[0]), int(row[1]) - self._capacity.freed[0], int(row[2]))

    def list_due(self, limit: int) -> list[DueJob]:
        rows = self._jobs.session.all("queue.list_due", now_at=self._now, limit=limit)
        return [DueJob(*row) for row in rows]

    def has_ready(self, class_ids: Sequence[int]) -> bool:
        return bool(self._look(class_ids, 1))

    def take_ready(self, class_ids: Sequence[int] | None, limit: int) -> list[ReadyJob]:
        if limit <= 0:
            return []
        if class_ids is None:
            return self._with_payloads(
                self._jobs.session.all_as(ReadyJob, "queue.take_ready", limit=limit)
            )
        if not class_ids:
            return []
        if len(class_ids) == 1:
            return self._with_payloads(self._take_class(class_ids[0], limit))
        counts = Counter(row[0] for row in self._look(class_ids, limit))
        if self._jobs.session.is_embedded:
            jobs = [
                job
                for class_id, count in sorted(counts.items())
                for job in self._take_class(class_id, count)
            ]
        else:
            jobs = [ReadyJob(*row) for row in self._of_classes("queue.take_class", counts)]
        return self._with_payloads(sorted(jobs, key=lambda job: (job.urgency, job.turn, job.seq)))

    def _with_payloads(self, jobs: list[ReadyJob]) -> list[ReadyJob]:
        """The jobs with the payloads that were too large to come with them, as far as these go
        into one answer. Those behind are left to the next claim."""
        large = [job.seq for job in jobs if not job.payload_json]
        if not large:
            return jobs
        rows = self._jobs.session.paged("queue.read_payloads", {}, MAX_PAGE_BYTES, seqs=large)
        found: dict[int, str] = dict(rows)
        whole: list[ReadyJob] = []
        for job in jobs:
            if not job.payload_json:
                if job.seq not in found:
                    break
                job = msgspec.structs.replace(job, payload_json=found[job.seq])
            whole.append(job)
        return whole

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
        heads = self._of_classes("queue.peek_class", dict.fromkeys(class_ids, limit))
        heads.sort(key=lambda row: row[1:])
        return heads[:limit]

    def _of_classes(self, name: str, limits: Mapping[int, int]) -> list[Row]:
        """The rows of classes, up to so many of each, in one round trip."""
        questions = [
            (name, {"class_id": class_id, "limit": limit})
            for class_id, limit in sorted(limits.items())
        ]
        return list(chain.from_iterable(self._jobs.session.ask(questions))) if questions else []

    def list_expired_claims(self, limit: int) -> list[ExpiredClaim]:
        rows = self._jobs.session.all("queue.list_expired_claims", now_at=self._now, limit=limit)
        return [ExpiredClaim(*row) for row in rows]

    def has_overdue(self, before: Instant) -> bool:
        return self._number("queue.has_overdue", before=before) is not None

    def next_ready_class(self, after: int) -> tuple[int, str] | None:
        row = self._jobs.session.one("queue.next_ready_class", after=after)
        return None if row is None else (int(row[0]), row[1])

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
