"""What tasks would do: schedules, policies, lengths of runs, outages and capacity in, a timeline
out. Pure.

Every decision is made by the functions that run production: slots and misfires by `firing`, first
slots by `arming`, ends and pauses by `outcome`, lost calls by `rescue`. Here is only what makes
them follow each other: a clock that jumps from one happening to the next, targets that answer after
a given time, and a number of calls that may be under way. It ends at the end of its time, or when
it has made as many steps as it may.
"""

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.tasks import firing
from ksana.domain.tasks.arming import arm
from ksana.domain.tasks.firing import Counts, Outage, PlannedRun
from ksana.domain.tasks.outcome import Verdict, decide_outcome
from ksana.domain.tasks.records import Definition, Task
from ksana.domain.tasks.rescue import judge_orphan

MAX_STEPS: Final = 20_000
"""Happenings of one simulation: slots decided, attempts begun and ended."""
MAX_RUNS: Final = 2_000
"""Runs that are told one by one; the others are only counted."""

_ONCE_GRACE: Final[Micros] = SECOND

End = Literal["SUCCESS", "FAILED", "TIMEOUT", "LOST"]
_ENDS: Final[dict[str, End]] = {
    "success": "SUCCESS",
    "retry": "FAILED",
    "fail": "FAILED",
    "timeout-retry": "TIMEOUT",
}
_DUE, _END, _READY, _DOWN, _UP = range(5)


class SimulatedTask(msgspec.Struct, frozen=True):
    """A task to try, how long one attempt takes, and when its target fails."""

    definition: Definition
    takes_us: Micros
    fails: tuple[Outage, ...] = ()


class Scenario(msgspec.Struct, frozen=True):
    """What to try."""

    since: Instant
    until: Instant
    tasks: tuple[SimulatedTask, ...]
    outages: tuple[Outage, ...] = ()
    """Spans in which no instance runs, in order, none over another."""
    capacity: int | None = None
    """Calls that may be under way together; None for no bound."""


class SimulatedAttempt(msgspec.Struct):
    """One call: LOST is one that was under way when an outage began."""

    started_at: Instant
    ended_at: Instant | None = None
    end: End | None = None


class SimulatedRun(msgspec.Struct):
    """A slot that was decided, and what came of it."""

    task: int
    """Which of the tasks, from 0."""
    slot_at: Instant
    decided_at: Instant
    trigger: str
    reason: str
    status: str
    attempts: list[SimulatedAttempt] = []
    ended_at: Instant | None = None


class TaskTally(msgspec.Struct):
    """What became of the slots of one task."""

    fired: int = 0
    skipped: Counter[str] = msgspec.field(default_factory=Counter)
    """Slots that were not run, by reason; those of a misfire that were not made up among them."""
    by_status: Counter[str] = msgspec.field(default_factory=Counter)
    attempts: int = 0
    most_active: int = 0
    most_waiting: int = 0
    longest_wait_us: Micros = 0
    """From a slot to its first call."""


class Simulation(msgspec.Struct, frozen=True):
    """The timeline."""

    until: Instant
    """How far it came: the end, or the last instant before it had made all its steps."""
    is_cut: bool
    runs: list[SimulatedRun]
    runs_left_out: int
    tallies: list[TaskTally]
    most_calls: int
    """Calls under way together, at most."""
    most_ready: int
    """Runs that waited for capacity, at most."""


def simulate(scenario: Scenario, max_steps: int = MAX_STEPS) -> Simulation:
    """Let time pass."""
    return _Course(scenario, max_steps).run()


class _Course:
    """One simulation under way."""

    def __init__(self, scenario: Scenario, max_steps: int) -> None:
        self._scenario = scenario
        self._steps_left = max_steps
        self._now = scenario.since
        self._heap: list[tuple[Instant, int, int, int]] = []
        """(when, what, in which order it came, task or run)."""
        self._order = 0
        self._tasks = [
            _make_task(at, one.definition, scenario.since) for at, one in enumerate(scenario.tasks)
        ]
        self._open = [Counts() for _ in self._tasks]
        self._waiting: list[deque[int]] = [deque() for _ in self._tasks]
        self._ready: deque[int] = deque()
        self._calls = 0
        self._is_down = False
        self._past: list[Outage] = []
        self._runs: list[SimulatedRun] = []
        self._tallies = [TaskTally() for _ in self._tasks]
        self._most_calls = self._most_ready = 0

    def run(self) -> Simulation:
        scenario = self._scenario
        for began, ended in scenario.outages:
            self._push(began, _DOWN, 0)
            self._push(ended, _UP, 0)
        for at, task in enumerate(self._tasks):
            if task.fire_at is not None:
                self._push(task.fire_at, _DUE, at)
        is_cut = False
        while self._heap and self._heap[0][0] < scenario.until:
            if self._steps_left <= 0:
                is_cut = True
                break
            at, what, _, which = heapq.heappop(self._heap)
            self._now = max(self._now, at)
            self._happen(what, which)
            self._start_ready()
        shown = self._runs[:MAX_RUNS]
        return Simulation(
            self._now if is_cut else scenario.until,
            is_cut,
            shown,
            len(self._runs) - len(shown),
            self._tallies,
            self._most_calls,
            self._most_ready,
        )

    def _push(self, at: Instant, what: int, which: int) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, what, self._order, which))

    def _happen(self, what: int, which: int) -> None:
        if what == _DOWN:
            self._go_down()
        elif what == _UP:
            self._come_up()
        elif what == _END:
            self._end_attempt(which)
        elif self._is_down:
            pass  # what fell due meanwhile is looked at when somebody runs again
        elif what == _DUE:
            self._fire(which)
        else:
            self._ready.append(which)

    # -- slots ---------------------------------------------------------------------------------

    def _fire(self, at: int) -> None:
        task = self._tasks[at]
        if task.fire_at is None or task.fire_at > self._now:
            return
        decided = firing.decide_firing(task, self._now, self._past, self._open[at])
        self._steps_left -= 1
        tally = self._tallies[at]
        for planned in decided.runs:
            self._add_run(at, planned)
        if decided.misfire is not None:
            made_up = sum(run.slot_at <= decided.misfire.last for run in decided.runs)
            left = decided.misfire.count - made_up
            if left:
                tally.skipped[f"MISFIRE_{decided.misfire.policy}"] += left
        self._tasks[at] = msgspec.structs.replace(
            task,
            next_slot_at=decided.next_slot_at,
            fire_at=decided.fire_at,
            runs_fired=task.runs_fired + decided.started,
        )
        if decided.fire_at is not None:
            self._push(decided.fire_at, _DUE, at)

    def _add_run(self, at: int, planned: PlannedRun) -> None:
        self._steps_left -= 1
        tally, counts = self._tallies[at], self._open[at]
        status = {"skip": "SKIPPED", "wait": "SCHEDULED", "start": "SCHEDULED"}[planned.start]
        self._runs.append(
            SimulatedRun(at, planned.slot_at, self._now, planned.trigger, planned.reason, status)
        )
        number = len(self._runs) - 1
        if planned.start == "skip":
            tally.skipped[planned.reason] += 1
            self._runs[number].ended_at = self._now
            return
        tally.fired += 1
        if planned.start == "wait":
            self._waiting[at].append(number)
            self._open[at] = Counts(counts.active, counts.waiting + 1)
        else:
            self._ready.append(number)
            self._open[at] = Counts(counts.active + 1, counts.waiting)
        tally.most_active = max(tally.most_active, self._open[at].active)
        tally.most_waiting = max(tally.most_waiting, self._open[at].waiting)

    # -- attempts ------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        capacity = self._scenario.capacity
        while self._ready and not self._is_down and (capacity is None or self._calls < capacity):
            self._start(self._ready.popleft())
        self._most_ready = max(self._most_ready, len(self._ready))

    def _start(self, number: int) -> None:
        self._steps_left -= 1
        run = self._runs[number]
        one, tally = self._scenario.tasks[run.task], self._tallies[run.task]
        if not run.attempts:
            tally.longest_wait_us = max(tally.longest_wait_us, self._now - run.slot_at)
        run.status = "RUNNING"
        run.attempts = [*run.attempts, SimulatedAttempt(self._now)]
        tally.attempts += 1
        self._calls += 1
        self._most_calls = max(self._most_calls, self._calls)
        self._push(self._now + min(one.takes_us, one.definition.timeout_us), _END, number)

    def _end_attempt(self, number: int) -> None:
        run = self._runs[number]
        if run.status != "RUNNING":
            return  # lost in an outage
        attempt = run.attempts[-1]
        one = self._scenario.tasks[run.task]
        if attempt.started_at + min(one.takes_us, one.definition.timeout_us) != self._now:
            return  # the end of an attempt before it, lost in an outage
        self._steps_left -= 1
        self._calls -= 1
        attempt.ended_at = self._now
        verdict = _judge(one, attempt)
        attempt.end = _ENDS[verdict.outcome]
        decided = decide_outcome(
            verdict,
            one.definition.retry,
            len(run.attempts),
            f"{run.task}:{run.slot_at}",
            self._now,
            is_async=False,
            callback_timeout_us=0,
        )
        if decided.next_retry_time is None:
            self._finish(number, decided.status, decided.reason)
        else:
            run.status, run.reason = decided.status, decided.reason
            self._push(decided.next_retry_time, _READY, number)

    def _finish(self, number: int, status: str, reason: str) -> None:
        run = self._runs[number]
        run.status, run.reason, run.ended_at = status, reason, self._now
        at = run.task
        self._tallies[at].by_status[status] += 1
        counts = self._open[at]
        self._open[at] = Counts(counts.active - 1, counts.waiting)
        self._promote(at)

    def _promote(self, at: int) -> None:
        """Those whose turn has come are about to start."""
        limit = self._scenario.tasks[at].definition.max_concurrency
        while self._waiting[at] and self._open[at].active < limit:
            counts = self._open[at]
            self._ready.append(self._waiting[at].popleft())
            self._open[at] = Counts(counts.active + 1, counts.waiting - 1)

    # -- outages -------------------------------------------------------------------------------

    def _go_down(self) -> None:
        self._is_down = True
        for run in self._runs:
            if run.status == "RUNNING":
                run.status = "LOST"
                run.attempts[-1].ended_at = self._now
                run.attempts[-1].end = "LOST"
        self._calls = 0

    def _come_up(self) -> None:
        self._is_down = False
        began = max(began for began, ended in self._scenario.outages if ended <= self._now)
        self._past.append((began, self._now))
        pending = {entry[3] for entry in self._heap if entry[1] == _READY}
        for number, run in enumerate(self._runs):
            if run.status == "LOST":
                self._rescue(number)
            elif run.status == "RETRYING" and number not in pending:
                self._ready.append(number)  # its pause ended meanwhile
        for at in range(len(self._tasks)):
            self._fire(at)

    def _rescue(self, number: int) -> None:
        """As production takes a run from an instance that died while the call was under way."""
        run = self._runs[number]
        definition = self._scenario.tasks[run.task].definition
        retry_at, reason = judge_orphan(definition, len(run.attempts), self._now)
        if retry_at is None:
            self._finish(number, "FAILED", reason)
        else:
            run.status, run.reason = "RETRYING", reason
            self._push(retry_at, _READY, number)


def _judge(one: SimulatedTask, attempt: SimulatedAttempt) -> Verdict:
    """What the target answers: nothing in time, a failure in a span when it fails, or success."""
    if one.takes_us > one.definition.timeout_us:
        return Verdict("timeout-retry")
    if any(began <= attempt.started_at < ended for began, ended in one.fails):
        return Verdict("retry")
    return Verdict("success")


def _make_task(at: int, definition: Definition, now: Instant) -> Task:
    key = f"{at}:{definition.name}"
    slot, fire_at, _ = arm(key, definition, "ENABLED", now, _ONCE_GRACE)
    return Task(
        id=at + 1,
        job_id=key,
        dialect="C",
        definition=definition,
        status="ENABLED",
        version=1,
        created_at=now,
        updated_at=now,
        is_deleted=False,
        next_slot_at=slot,
        fire_at=fire_at,
        runs_fired=0,
        last_run_at=None,
        last_status="",
        last_error="",
    )


def merge_spans(spans: Sequence[Outage]) -> tuple[Outage, ...]:
    """Spans in order, those that touch made one."""
    merged: list[Outage] = []
    for began, ended in sorted(spans):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return tuple(merged)
