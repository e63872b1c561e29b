"""What governance must do, said a second time and in another way: whole decisions over plain
objects, one call at a time. Shares no code with `ksana.domain.governance`; its words are those of
the contract (G1 to G11)."""

import copy
from collections.abc import Iterable
from typing import Any, Final

from ksana.base.instant import SECOND

VERIFYING: Final = ("verify", "revalidate")
ENDED_BY_AN_ILLEGAL_MOVE: Final = ("archive", "reinstate-check")
BUDGET, LIMIT, MAX_ATTEMPTS = 2, 2, 3
ABSENT: Final = "absent"
"""A member that a call does not name."""
OUT_OF_BUDGET: Final = {
    "memory": "stale_uncertain",
    "experience": "needs_review",
    "cognition": "stale",
}

_MOVES: Final = {
    "memory": """
        candidate: verified quarantine stale_uncertain
        quarantine: verified rejected_poisoned
        verified: active stale stale_uncertain
        active: stale stale_uncertain
        stale: active stale_uncertain archived
        stale_uncertain: active verified archived
        rejected_poisoned: archived
    """,
    "experience": """
        candidate: active needs_review
        needs_review: active archived
        active: needs_review invalidated archived
        invalidated: archived
    """,
    "cognition": """
        candidate: active archived
        active: needs_revalidate refuted
        needs_revalidate: active stale refuted
        stale: active refuted archived
        refuted: archived
    """,
}


def _may_follow(kind: str, old: str, new: str) -> bool:
    lines = (line.partition(":") for line in _MOVES[kind].split("\n"))
    return any(old == state.strip() and new in nexts.split() for state, _, nexts in lines)


class Refused(Exception):
    """The call must be refused, with this code."""


class ObjectTwin:
    """An object as it must be."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.status = "candidate"
        self.epistemic: str | None = None
        self.unknown: str | None = None
        self.risk = "low"
        self.budget = BUDGET
        self.verified = 0
        self.next_at: int | None = None
        self.next_action: str | None = None

    def may_become(self, status: str) -> bool:
        return status == self.status or _may_follow(self.kind, self.status, status)

    def is_at_its_limit(self, action: str) -> bool:
        return self.unknown == "ontic_unknowable" and action in VERIFYING and self.verified >= LIMIT


class JobTwin:
    """A job as it must be. A follow-up has no id before somebody looked."""

    def __init__(self, key: str, action: str, urgency: int, run_at: int) -> None:
        self.id: str | None = None
        self.seq = 0
        self.key = key
        self.action = action
        self.urgency = urgency
        self.run_at = run_at
        self.status = "queued"
        self.attempt = 0
        self.token = 0
        self.until = 0
        self.deferrals = 0
        self.kept_by: str | None = None
        """The gate's setting that it waits for."""
        self.is_planned = False
        """It was made by an object's next action."""
        self.is_follow_up = False
        """It stands for its object's next action now."""
        self.ack: Any = None

    def place(self, is_urgent_first: bool) -> tuple[int, ...]:
        by_time = (self.run_at // SECOND, self.urgency, self.seq)
        return (self.urgency, *by_time) if is_urgent_first else by_time


class Model:
    """Everything that governance knows."""

    def __init__(self) -> None:
        self.objects: dict[str, ObjectTwin] = {}
        self.jobs: list[JobTwin] = []
        self.gates: dict[str, str] = {"persona/": "open", "cognition/": "open"}

    def copy(self) -> "Model":
        return copy.deepcopy(self)

    def find(self, job_id: str) -> JobTwin:
        return next(job for job in self.jobs if job.id == job_id)

    def list_jobs(self, *statuses: str) -> list[JobTwin]:
        return [job for job in self.jobs if job.status in statuses]

    def _follow_up_of(self, key: str) -> JobTwin | None:
        return next((job for job in self.jobs if job.key == key and job.is_follow_up), None)

    # -- objects and gates -------------------------------------------------------------------------

    def enqueue(self, key: str, action: str, urgency: int, run_at: int, job_id: str) -> None:
        governed = self.objects.get(key)
        if governed is not None and governed.is_at_its_limit(action):
            raise Refused("ILLEGAL_TRANSITION")
        job = JobTwin(key, action, urgency, run_at)
        job.id = job_id
        self.jobs.append(job)

    def change(self, key: str, fields: dict[str, Any], *, is_put: bool) -> None:
        kind = key.partition(":")[0]
        old = self.objects.get(key)
        if old is None and not is_put:
            raise Refused("NOT_FOUND")
        governed = copy.copy(old) if old is not None else ObjectTwin(kind)
        if is_put and old is not None:
            bare = ObjectTwin(kind)
            bare.status, bare.budget, bare.verified = old.status, old.budget, old.verified
            governed = bare
        for name, value in fields.items():
            default = getattr(ObjectTwin(kind), name)
            setattr(governed, name, default if value is None else value)
        if old is not None and not old.may_become(governed.status):
            raise Refused("ILLEGAL_TRANSITION")
        if governed.next_at is not None and governed.next_action is None:
            governed.next_action = "revalidate" if kind == "cognition" else "verify"
        planned = (governed.next_at, governed.next_action)
        # The same again is no news: its follow-up may be in a worker's hands.
        if old is None or governed.next_at is None or planned != (old.next_at, old.next_action):
            self._plan(key, governed, urgency=1, is_asked=True)
        self.objects[key] = governed

    def _plan(self, key: str, governed: ObjectTwin, *, urgency: int, is_asked: bool) -> None:
        """Bring the follow-up in line with what the object says."""
        waiting = self._follow_up_of(key)
        if governed.next_at is not None:
            assert governed.next_action is not None
            if governed.is_at_its_limit(governed.next_action):
                if is_asked:
                    raise Refused("ILLEGAL_TRANSITION")
                governed.next_at = None
        if governed.next_at is None:
            if waiting is not None:
                self.jobs.remove(waiting)
            return
        assert governed.next_action is not None
        if waiting is None:
            waiting = JobTwin(key, governed.next_action, urgency, governed.next_at)
            waiting.is_planned = waiting.is_follow_up = True
            self.jobs.append(waiting)
        elif (waiting.run_at, waiting.action) != (governed.next_at, governed.next_action):
            waiting.run_at, waiting.action = governed.next_at, governed.next_action
            waiting.kept_by = None

    def set_gate(self, setting: str, state: str) -> None:
        self.gates[setting] = state
        if state != "closed":
            self.wake()

    def wake(self) -> None:
        """What waited for a setting that is not closed any more waits for its time again."""
        for job in self.jobs:
            if job.kept_by is not None and self.gates[job.kept_by] != "closed":
                job.kept_by = None

    def list_closed(self, key: str, action: str) -> list[str]:
        """The settings that keep jobs of high risk, in the order of their names."""
        kind = key.partition(":")[0]
        scopes = ("", kind, f"{kind}:{action}", f"*:{action}")
        return [
            name
            for name, state in sorted(self.gates.items())
            if state == "closed" and name.partition("/")[2] in scopes
        ]

    # -- hand-outs ---------------------------------------------------------------------------------

    def pull(
        self,
        limit: int,
        now: int,
        lease: int,
        *,
        actions: Iterable[str] = (),
        is_urgent_first: bool = False,
    ) -> list[JobTwin]:
        wanted = tuple(actions)
        due = [
            job
            for job in self.list_jobs("queued")
            if job.kept_by is None and job.run_at <= now and (not wanted or job.action in wanted)
        ]
        handed: list[JobTwin] = []
        for job in sorted(due, key=lambda job: job.place(is_urgent_first)):
            if len(handed) == limit:
                break
            if self._hand_out(job, now, lease):
                handed.append(job)
        return handed

    def _hand_out(self, job: JobTwin, now: int, lease: int) -> bool:
        governed = self.objects.get(job.key)
        if governed is not None:
            closed = self.list_closed(job.key, job.action)
            if governed.risk == "high" and closed:
                job.kept_by = closed[0]
                job.deferrals += 1
                return False
            is_spent = governed.epistemic == "uncertain" and governed.budget == 0
            if job.action in VERIFYING and (governed.is_at_its_limit(job.action) or is_spent):
                is_moved = not governed.is_at_its_limit(job.action)
                self._end_by_rule(job, is_over=job.is_follow_up)
                status = OUT_OF_BUDGET[governed.kind]
                if is_moved and governed.may_become(status):
                    governed.status = status
                return False
            if job.action in VERIFYING:
                governed.verified += 1
                governed.budget -= governed.epistemic == "uncertain"
        job.status, job.until, job.token = "running", now + lease, -1
        job.is_follow_up = False
        return True

    def _end_by_rule(self, job: JobTwin, *, is_over: bool) -> None:
        """If that was what its object waited for, nothing comes next."""
        job.status, job.token, job.is_follow_up = "failed", 0, False
        governed = self.objects.get(job.key)
        if governed is not None and is_over:
            governed.next_at = None

    def _is_over(self, job: JobTwin) -> bool:
        return job.is_planned and self._follow_up_of(job.key) is None

    # -- ends --------------------------------------------------------------------------------------

    def _prove(self, job: JobTwin, token: int, now: int) -> None:
        if job.status != "running" or token != job.token:
            raise Refused("LEASE_LOST")
        if job.until <= now:
            self._end_attempt(job, job.run_at)
            raise Refused("LEASE_LOST")

    def ack(
        self, job: JobTwin, token: int, now: int, *, next_at: Any, action: str | None, status: Any
    ) -> None:
        said = (token, next_at, action, status)
        if job.ack == said:
            return
        self._prove(job, token, now)
        kind = job.key.partition(":")[0]
        wanted = "archived" if job.action == "archive" and status is None else status
        governed = self.objects.get(job.key)
        if governed is not None and wanted is not None and not governed.may_become(wanted):
            if job.action not in ENDED_BY_AN_ILLEGAL_MOVE:
                raise Refused("ILLEGAL_TRANSITION")
            self._end_by_rule(job, is_over=self._is_over(job))
            job.ack = said
            return
        if governed is None:
            governed = self.objects[job.key] = ObjectTwin(kind)
            governed.verified = job.attempt + 1 if job.action in VERIFYING else 0
        governed.status = wanted or governed.status
        job.status, job.token, job.ack = "succeeded", 0, said
        if next_at != ABSENT:
            governed.next_at, governed.next_action = next_at, action or job.action
            self._plan(job.key, governed, urgency=job.urgency, is_asked=False)
        elif self._is_over(job):
            governed.next_at = None

    def fail(self, job: JobTwin, token: int, now: int, delay: int, *, is_final: bool) -> None:
        self._prove(job, token, now)
        if is_final:
            self._end_by_rule(job, is_over=self._is_over(job))
            return
        later = job.run_at + delay
        self._end_attempt(job, later if later >= now else now + delay)

    def _end_attempt(self, job: JobTwin, run_at: int) -> None:
        job.attempt += 1
        job.token, job.until = 0, 0
        if job.attempt >= MAX_ATTEMPTS:
            job.status = "dead_letter"
            return
        job.status, job.run_at = "queued", run_at
        job.is_follow_up = self._is_over(job)

    def renew(self, job: JobTwin, token: int, now: int, lease: int) -> None:
        self._prove(job, token, now)
        job.until = now + lease

    def sweep(self, now: int) -> None:
        for job in sorted(self.list_jobs("running"), key=lambda job: (job.until, job.seq)):
            if job.until <= now:
                self._end_attempt(job, job.run_at)
        self.wake()

    def requeue(self, job: JobTwin, now: int) -> None:
        if job.status != "dead_letter":
            raise Refused("ILLEGAL_TRANSITION")
        job.status, job.run_at, job.attempt = "queued", now, 0
        job.is_follow_up = self._is_over(job)
