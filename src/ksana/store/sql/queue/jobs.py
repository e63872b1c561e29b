"""Queue jobs, their lines and gauges in SQL. The order of claims is an index; nothing here sorts or
scans what waits.

Claims with filters: a line is a set of jobs no filter can tell apart, and has its own index range.
A claim reads the heads of the lines it may take from, so rows that do not match cost nothing,
however many wait.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ksana.base.ids import new_token
from ksana.base.instant import Instant
from ksana.domain.queue.jobs import FINAL_OF, Job, Lane, Line, ReadyJob, Settled, next_turn
from ksana.ports.queue.tables import Due, Gauges, JobFilter
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.queue.sets import FEW_ROWS, JOB_COLUMNS, among, change_among, job_row

FEW_LINES: Final = 16
"""Up to this many lines a claim looks at each line's head; above it first looks along the common
line."""

LOOK: Final = 256
"""Jobs of the common line looked at before a claim turns to the lines one by one."""

SHARDS: Final = 4
"""Rows a gauge and a count of one minute are spread over."""

_PROCESS: Final = new_token() >> 8 << 4
"""Tells the gauge rows of this process from those of others."""

_decode_needs = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlQueue:
    """`scheduler_job_runs`, `queue_lines`, `queue_gauges`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._raw = session
        self._events = tx.events
        self._rollups = tx.rollups
        self._new: list[Row] = []
        self._counted = (0, 0, 0)
        self._now: Instant = tx.now
        self._shard = (id(session) >> 6) % SHARDS
        self._gauge_row = _PROCESS ^ id(session)
        self._heads: dict[int, int | None] = {}
        self._tails: dict[int, int | None] = {}
        self._key_tails: dict[tuple[int, str], int | None] = {}

    @property
    def _session(self) -> Session:
        """The session, with every job entered before to be seen by what comes next."""
        if self._new:
            self._write_new()
        return self._raw

    def insert(self, jobs: Sequence[Job], *, once: bool) -> int:
        rows = [job_row(job) for job in jobs]
        if once:
            return self._session.run_tuples("queue.insert_job_once", JOB_COLUMNS, rows)
        # Nothing can refuse these: those of all functions of one commit are written together.
        self._raw.wrote = True
        self._new += rows
        return len(rows)

    def _write_new(self) -> None:
        rows, self._new = self._new, []
        self._raw.run_tuples("queue.insert_job", JOB_COLUMNS, rows)

    def flush(self) -> None:
        """Write what was gathered: new jobs, and one change of the gauges for all functions of a
        commit."""
        if self._new:
            self._write_new()
        if self._counted != (0, 0, 0):
            queued, running, arrivals = self._counted
            self._counted = (0, 0, 0)
            self._raw.run(
                "queue.add_to_gauges",
                shard=self._gauge_row,
                queued=queued,
                running=running,
                arrivals=arrivals,
            )

    def forget(self) -> None:
        """Drop what was gathered."""
        self._new = []
        self._counted = (0, 0, 0)
        self._forget_turns()

    def enter_lines(self, lines: Sequence[Line]) -> None:
        for line in sorted(lines, key=lambda one: one.id):
            self._session.run(
                "queue.enter_line",
                id=line.id,
                addon_id=line.addon_id,
                job_type=line.job_type,
                cost_units=line.cost_units,
                needs_json=msgspec.json.encode(line.needs).decode(),
            )

    def line_mark(self) -> tuple[int, int]:
        row = self._session.one("queue.line_mark")
        assert row is not None
        return int(row[0]), int(row[1])

    def list_lines(self) -> list[Line]:
        return [
            Line(row[0], row[1], row[2], row[3], _decode_needs(row[4]))
            for row in self._session.all("queue.list_lines")
        ]

    def find_job(self, job_id: str) -> Job | None:
        row = self._session.one("queue.find_job", job_id=job_id)
        return None if row is None else Job(*row)

    def find_job_by_request(self, addon_id: str, client_request_id: str) -> Job | None:
        row = self._session.one(
            "queue.find_job_by_request", addon_id=addon_id, client_request_id=client_request_id
        )
        return None if row is None else Job(*row)

    def lock_job(self, job_id: str) -> tuple[Job, bool] | None:
        row = self._session.one("queue.lock_job", job_id=job_id)
        return None if row is None else (Job(*row[:-1]), bool(row[-1]))

    def lock_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        if len(job_ids) == 1:
            found = self.lock_job(job_ids[0])
            return {} if found is None else {job_ids[0]: found[0]}
        return {row[1]: Job(*row) for row in among(self._session, "queue.lock_jobs_among", job_ids)}

    def list_jobs(self, wanted: JobFilter, before: int | None, limit: int) -> list[Job]:
        filters = {**msgspec.structs.asdict(wanted), "before": before}
        return [
            Job(*row) for row in self._session.filtered("queue.list_jobs", filters, limit=limit)
        ]

    # Turns are read once and carried on: jobs entered in the same commit count too. When a function
    # of the commit takes or moves what they were read from, they are read anew.

    def turn(self, urgency: int, fairness_key: str | None) -> int:
        tails = self._tails
        if urgency not in tails:
            tails[urgency] = self._number("queue.tail_turn", urgency=urgency)
        tail = tails[urgency]
        if fairness_key is None:
            turn = next_turn(False, None, tail, None)
        else:
            if urgency not in self._heads:
                self._heads[urgency] = self._number("queue.head_turn", urgency=urgency)
            place = (urgency, fairness_key)
            if place not in self._key_tails:
                self._key_tails[place] = self._number(
                    "queue.key_turn", urgency=urgency, fairness_key=fairness_key
                )
            turn = next_turn(True, self._heads[urgency], tail, self._key_tails[place])
            self._key_tails[place] = turn
            if self._heads[urgency] is None:
                self._heads[urgency] = turn
        tails[urgency] = turn if tail is None else max(tail, turn)
        return turn

    def front_turn(self, urgency: int) -> int:
        return self._number("queue.head_turn", urgency=urgency) or 0

    def _forget_turns(self) -> None:
        self._heads.clear()
        self._tails.clear()
        self._key_tails.clear()

    def promote_due(self, limit: int) -> list[int]:
        due = self._session.all("queue.list_due", limit=limit)
        if not due:
            return []
        self._forget_turns()
        rows = [{"seq": seq, "turn": self.turn(urgency, key)} for seq, urgency, key, _ in due]
        self._forget_turns()
        self._session.run_many("queue.promote_job", rows)
        return [row[3] for row in due]

    def has_ready(self, line_ids: Sequence[int]) -> bool:
        return bool(self._look(line_ids, 1))

    def take_ready(self, line_ids: Sequence[int] | None, limit: int) -> list[ReadyJob]:
        if limit <= 0:
            return []
        if line_ids is None:
            return self._session.all_as(ReadyJob, "queue.take_ready", limit=limit)
        if not line_ids:
            return []
        if len(line_ids) == 1:
            return self._take_line(line_ids[0], limit)
        heads = self._look(line_ids, limit)
        counts = Counter(row[0] for row in heads)
        jobs = [
            job
            for line_id, count in sorted(counts.items())
            for job in self._take_line(line_id, count)
        ]
        return sorted(jobs, key=lambda job: (job.urgency, job.turn, job.seq))

    def _take_line(self, line_id: int, limit: int) -> list[ReadyJob]:
        return self._session.all_as(ReadyJob, "queue.take_line", line_id=line_id, limit=limit)

    def _look(self, line_ids: Sequence[int], limit: int) -> list[Row]:
        """The first `limit` places over these lines, unlocked: which line to take how many from."""
        if len(line_ids) > FEW_LINES:
            width = max(LOOK, 2 * limit)
            wanted = frozenset(line_ids)
            rows = self._session.all("queue.peek_ready", limit=width)
            found = [row for row in rows if row[0] in wanted]
            if len(found) >= limit or len(rows) < width:
                return found[:limit]
        heads: list[Row] = []
        for line_id in line_ids:
            heads += self._session.all("queue.peek_line", line_id=line_id, limit=limit)
        heads.sort(key=lambda row: row[1:])
        return heads[:limit]

    def claim_ready(self, jobs: Sequence[ReadyJob], worker_id: str, until: Instant) -> int:
        self._forget_turns()
        same = {"worker_id": worker_id, "until": until, "now_at": self._now}
        if len(jobs) <= FEW_ROWS:
            return self._session.run_many(
                "queue.claim_job", [{"seq": job.seq, **same} for job in jobs]
            )
        rows = [(job.seq,) for job in jobs]
        return change_among(self._session, "queue.claim_jobs_among", ("id",), rows, same)

    def run_ready(self, grants: Sequence[tuple[int, str]], worker_id: str) -> int:
        self._forget_turns()
        same = {"worker_id": worker_id, "now_at": self._now}
        if len(grants) <= FEW_ROWS:
            rows = [{"seq": seq, "lease_id": lease_id, **same} for seq, lease_id in grants]
            return self._session.run_many("queue.run_ready_job", rows)
        return change_among(
            self._session, "queue.run_ready_jobs_among", ("id", "lease"), grants, same
        )

    def tell_grants(self, job_seqs: Sequence[int], worker_json: str) -> None:
        tell, now = self._session.run_over, self._now
        self._events.flush()  # what was told before has the lower ids
        tell("queue.tell_claimed", job_seqs, now_at=now, data=worker_json)
        tell("queue.tell_granted", job_seqs, now_at=now, data='{"job_id":"*","cost_units":#}')
        tell("queue.tell_running", job_seqs, now_at=now, data='{"lease_id":"*","attempts":#}')

    def tell_released(self, job_seqs: Sequence[int], status: str) -> None:
        self._events.flush()
        data = f'{{"job_id":"*","status":"{status}"}}'
        self._session.run_over("queue.tell_released", job_seqs, now_at=self._now, data=data)

    def tell_done(self, job_seqs: Sequence[int], reason: str) -> None:
        self._events.flush()
        data = f'{{"lease_id":"*","attempts":#,"reason":"{reason}"}}'
        self._session.run_over("queue.tell_done", job_seqs, now_at=self._now, data=data)

    def grant_if_claimed(self, job_id: str, lease_id: str) -> bool:
        return (
            self._session.run("queue.grant_job", job_id=job_id, lease_id=lease_id, now_at=self._now)
            == 1
        )

    def deny_if_claimed(self, job_id: str, next_retry_at: Instant, until: Instant) -> bool:
        return (
            self._session.run(
                "queue.deny_job",
                job_id=job_id,
                next_retry_at=next_retry_at,
                until=until,
                now_at=self._now,
            )
            == 1
        )

    def report_if_claimed(
        self, job: Job, to: str, progress: float | None, note: str | None, until: Instant
    ) -> bool:
        lane = Lane.PENDING if job.lane == Lane.PENDING else Lane.CLAIMED
        changed = self._session.run(
            "queue.report_held_job",
            job_id=job.job_id,
            state=job.state,
            to_state=to,
            lane=int(lane),
            progress=progress,
            note=note,
            until=until,
            now_at=self._now,
        )
        return changed == 1

    def report_if_running(
        self, job_id: str, lease_id: str, progress: float | None, note: str | None
    ) -> bool:
        changed = self._session.run(
            "queue.report_running_job",
            job_id=job_id,
            lease_id=lease_id,
            progress=progress,
            note=note,
            now_at=self._now,
        )
        return changed == 1

    def cancel_if_waiting(self, job_id: str, reason: str | None) -> bool:
        self._forget_turns()
        return (
            self._session.run("queue.cancel_job", job_id=job_id, reason=reason, now_at=self._now)
            == 1
        )

    def request_cancel_if_running(self, job_id: str, reason: str | None) -> bool:
        return (
            self._session.run(
                "queue.request_cancel", job_id=job_id, reason=reason, now_at=self._now
            )
            == 1
        )

    def end_running(self, ends: Sequence[Settled]) -> int:
        now = self._now
        if len(ends) <= FEW_ROWS:
            rows = [
                {
                    "seq": end.seq,
                    "lease_id": end.lease_id,
                    "state": end.state,
                    "final_status": FINAL_OF[end.state],
                    "error_text": end.error,
                    "result_json": end.result_json,
                    "metrics_json": end.metrics_json,
                    "now_at": now,
                }
                for end in ends
            ]
            return self._session.run_many("queue.end_job", rows)
        alike: dict[tuple[str, str | None], list[Row]] = {}
        for end in ends:
            places = alike.setdefault((end.state, end.error), [])
            places.append((end.seq, end.lease_id, end.result_json, end.metrics_json))
        count = 0
        for (state, error), places in alike.items():
            same = {
                "state": state,
                "final_status": FINAL_OF[state],
                "error_text": error,
                "now_at": now,
            }
            names = ("id", "lease", "result", "metrics")
            count += change_among(self._session, "queue.end_jobs_among", names, places, same)
        return count

    def requeue_running(self, ends: Sequence[Settled]) -> int:
        self._forget_turns()
        rows = [
            {
                "seq": end.seq,
                "lease_id": end.lease_id,
                "lane": end.lane,
                "turn": end.turn,
                "due_at": end.due_at,
                "next_retry_at": end.next_retry_at,
                "error_text": end.error,
                "result_json": end.result_json,
                "metrics_json": end.metrics_json,
                "now_at": self._now,
            }
            for end in ends
        ]
        return self._session.run_many("queue.requeue_job", rows)

    def list_expired_claims(self, limit: int) -> list[Job]:
        return [Job(*row) for row in self._session.all("queue.list_expired_claims", limit=limit)]

    def requeue_expired(self, jobs: Sequence[Job]) -> int:
        self._forget_turns()
        rows = [
            {"seq": job.seq, "turn": self.front_turn(job.urgency), "now_at": self._now}
            for job in jobs
        ]
        return self._session.run_many("queue.requeue_claimed_job", rows)

    def next_due(self) -> Due:
        row = self._session.one("queue.next_due")
        assert row is not None
        return Due(*row)

    def best_pending_urgency(self, besides: str) -> int | None:
        return self._number("queue.best_pending_urgency", job_id=besides)

    def count_pending_ahead(self, job: Job, pending_at: Instant) -> int:
        found = self._number(
            "queue.count_pending_ahead",
            job_id=job.job_id,
            urgency=job.urgency,
            pending_at=pending_at,
            seq=job.seq,
        )
        return found or 0

    def count_ready_ahead(self, job: Job, limit: int) -> int:
        found = self._number(
            "queue.count_ready_ahead", urgency=job.urgency, turn=job.turn, seq=job.seq, limit=limit
        )
        return found or 0

    def count(
        self,
        *,
        queued: int = 0,
        running: int = 0,
        leases: int = 0,
        units: int = 0,
        arrivals: int = 0,
    ) -> None:
        before = self._counted
        self._counted = (before[0] + queued, before[1] + running, before[2] + arrivals)
        self._raw.wrote = True
        add, key = self._rollups.add, str(self._shard)
        for name, change in (
            ("queued", queued),
            ("running", running),
            ("leases", leases),
            ("units", units),
        ):
            if change:
                add(f"queue.{name}", key, change)

    def tally(self, metric: str, count: int = 1) -> None:
        self._rollups.add(f"queue.{metric}", str(self._shard), count)

    def observe(self, metric: str, spans: Mapping[int, int]) -> None:
        for bucket, count in spans.items():
            self._rollups.add(f"queue.{metric}", f"{bucket}.{self._shard}", count)

    def gauges(self) -> Gauges:
        if self._counted != (0, 0, 0):
            self.flush()
        row = self._session.one("queue.sum_gauges")
        assert row is not None
        return Gauges(int(row[0]), int(row[1]), int(row[2]))

    def recount(self) -> Gauges:
        row = self._session.one("queue.count_waiting")
        assert row is not None
        self._fold_gauges()
        said = self.gauges()
        queued, running = int(row[0]) + int(row[1]), int(row[2])
        if (queued, running) != (said.queued, said.running):
            self._session.run(
                "queue.add_to_gauges",
                shard=self._gauge_row,
                queued=queued - said.queued,
                running=running - said.running,
                arrivals=0,
            )
        return Gauges(queued, running, said.arrivals)

    def _fold_gauges(self) -> None:
        """Take over the rows of other connections; one that is alive starts a new row when it next
        counts."""
        for shard, queued, running, arrivals in self._session.all(
            "queue.list_gauges", shard=self._gauge_row, limit=1000
        ):
            self._session.run("queue.delete_gauges", shard=shard)
            self._session.run(
                "queue.add_to_gauges",
                shard=self._gauge_row,
                queued=queued,
                running=running,
                arrivals=arrivals,
            )

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("queue.list_finished", before=before, limit=limit)
        self._session.run_many("queue.delete_leases", [{"job_seq": row[0]} for row in rows])
        return self._session.run_many("queue.delete_job", [{"seq": row[0]} for row in rows])

    def _number(self, name: str, **params: Any) -> int | None:
        row = self._session.one(name, **params)
        return None if row is None or row[0] is None else int(row[0])
