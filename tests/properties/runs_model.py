"""The machine that fires, answers, calls back, cancels, kills and restarts beside its model."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.instant import MILLISECOND, MINUTE, SECOND, Instant, format_instant
from ksana.domain.lifecycle import RUN, RUN_ACTIVE
from ksana.domain.tasks.records import Options, RetryPolicy, Run, Task
from ksana.engine.tasks.task_secrets import CLEAR
from ksana.ports.caller import Reply, Request, Timing
from tests.engine.tasks_world import World, answer, data_of, every, open_world, task_of

ANSWERS = ("fine", "broken", "refused", "hangs", "no", "unreachable")


EVENT_STATES = {
    "RUN_STARTED": "RUNNING",
    "RUN_SCHEDULED": "SCHEDULED",
    "RUN_SKIPPED": "SKIPPED",
    **{f"RUN_{state}": state for state in RUN.states if state not in ("RUNNING", "SCHEDULED")},
}
"""The state a run is in once an event was recorded; events that are not here change none."""


CALLBACK_TIMEOUT = 60 * SECOND


MEMORY = Path("/dev/shm")


class Twin:
    """What the model knows of one task."""

    def __init__(self, task: Task, made_at: Instant) -> None:
        self.task = task
        self.anchor = made_at
        self.off: list[tuple[Instant, Instant]] = []
        """Spans in which it was disabled: their slots are nobody's."""
        self.off_since: Instant | None = None
        self.is_deleted = False

    @property
    def id(self) -> int:
        return self.task.id

    def expected_slots(self, until: Instant) -> set[Instant]:
        """Slots that must have left a trace by now."""
        step = self.task.definition.schedule.every_us  # type: ignore[union-attr]
        slots = range(self.anchor + step, until + 1, step)
        spans = [*self.off, *([(self.off_since, until)] if self.off_since is not None else [])]
        return {slot for slot in slots if not any(a <= slot <= b for a, b in spans)}


class RunsMachine(RuleBasedStateMachine):
    """One server on a virtual clock, its targets and its operators."""

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        # In memory where there is such a folder: nothing here is about the disk.
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.clock = VirtualClock()
        self.twins: list[Twin] = []
        self.final: dict[int, str] = {}
        self.mood = "fine"
        self.world: World = self.wait(open_world(Path(self.folder.name), self.clock))
        self.world.renew_every_us = 5 * SECOND
        self.calls: Counter[tuple[str, str]] = Counter()
        self.seen_calls = 0
        self.log: list[Any] = []
        self.outages: list[tuple[Instant, Instant]] = []
        self.unknown: set[str] = set()
        """Runs of which a call was never answered."""
        self.sent_again: list[str] = []
        """Runs of `at_most_once` tasks that were sent again all the same."""

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.check_that_everything_ends()
            if self.world.is_alive:
                self.wait(self.world.die())
        finally:
            self.wait(self.world.store.close())
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
            self.folder.cleanup()

    # -- what happens ------------------------------------------------------------------------------

    @rule(
        period=st.sampled_from((7, 20, 3600)),
        policy=st.sampled_from(("QUEUE", "SKIP", "PARALLEL")),
        limit=st.integers(1, 2),
        retries=st.integers(0, 2),
        is_async=st.booleans(),
        delivery=st.sampled_from(("at_least_once", "at_most_once")),
        misfire=st.sampled_from(("FIRE_NOW", "SKIP", "CATCH_UP_LIMITED")),
        again=st.booleans(),
    )
    @precondition(lambda self: len(self.twins) < 3)
    def make_task(
        self,
        period: int,
        policy: str,
        limit: int,
        retries: int,
        is_async: bool,
        delivery: str,
        misfire: str,
        again: bool,
    ) -> None:
        definition = task_of(
            every(self.world, period),
            name=f"t{len(self.twins)}",
            url=f"http://target{len(self.twins)}/hook",
            exec_type="ASYNC" if is_async else "SYNC",
            concurrency_policy=policy,
            max_concurrency=limit,
            misfire_policy=misfire,
            catchup_limit=3,
            timeout_us=5 * SECOND,
            callback_timeout_us=CALLBACK_TIMEOUT,
            retry=RetryPolicy(max_retries=retries, initial_delay_us=2 * SECOND),
            options=Options(
                max_queued=3,
                delivery=delivery,  # type: ignore[arg-type]
                retry_on_callback_failure=again,
            ),
        )
        made_at = self.clock.now()
        self.twins.append(Twin(self.wait(self.world.add(definition)), made_at))
        self.world.caller.scripts[definition.target_url] = self.respond

    def respond(self, request: Request) -> Reply | None:
        uid = next(value for name, value in request.headers if name == "X-Ksana-Run-Id")
        if uid in self.unknown and not request.may_resend:
            self.sent_again.append(uid)
        if self.mood == "hangs":
            self.unknown.add(uid)
            return None
        if self.mood == "unreachable":
            return Reply("unreachable", Timing(), error="connection refused")
        return answer({"fine": 200, "broken": 500, "refused": 429, "no": 404}[self.mood])

    @rule(mood=st.sampled_from(ANSWERS))
    def change_mood(self, mood: str) -> None:
        """From now on targets answer like this."""
        self.mood = mood

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: self.twins and self.world.is_alive)
    def trigger(self, pick: int) -> None:
        self.attempt(self.world.tasks.trigger(self.pick_task(pick).id))

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: self.twins and self.world.is_alive)
    def run_now(self, pick: int) -> None:
        self.attempt(self.world.tasks.run_now(self.pick_task(pick).id))

    @rule(pick=st.integers(0, 99))
    @precondition(lambda self: self.world.is_alive)
    def cancel(self, pick: int) -> None:
        found = self.open_runs()
        if found:
            run = found[pick % len(found)]
            self.attempt(self.world.runs.cancel(run.id))
            assert self.read(run.id).status == "CANCELED"

    @rule(pick=st.integers(0, 99), status=st.sampled_from(("SUCCESS", "FAILED", "RUNNING")))
    @precondition(lambda self: self.world.is_alive)
    def call_back(self, pick: int, status: str) -> None:
        found = [run for run in self.all_runs() if run.callback_hash]
        if not found:
            return
        run = found[pick % len(found)]
        members = {"extend_sec": 30.0} if status == "RUNNING" else {}
        token = CLEAR.find_token(run.uid, run.callback_hash or "")
        before = run.status
        told = self.attempt(self.world.call_back(token, status, **members))
        if told is None:
            return
        after = self.read(run.id)
        if before in RUN.final:
            assert after.status == before, "a callback changed a finished run"
        elif status == "SUCCESS":
            assert after.status == "CALLBACK_SUCCESS"

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: self.twins and self.world.is_alive)
    def disable_or_enable(self, pick: int) -> None:
        twin = self.pick_task(pick)
        if twin.is_deleted:
            return
        is_off = twin.off_since is not None
        self.attempt(self.world.tasks.set_enabled(twin.id, is_off))
        if is_off:
            assert twin.off_since is not None
            twin.off.append((twin.off_since, self.clock.now()))
            twin.off_since = None
        else:
            twin.off_since = self.clock.now()

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: len(self.twins) > 1 and self.world.is_alive)
    def delete(self, pick: int) -> None:
        twin = self.pick_task(pick)
        if not twin.is_deleted:
            self.attempt(self.world.tasks.delete(twin.id))
            twin.is_deleted = True

    @rule(seconds=st.sampled_from((1, 3, 8, 30, 70)))
    @precondition(lambda self: self.world.is_alive)
    def let_time_pass(self, seconds: int) -> None:
        self.wait(self.clock.advance(seconds * SECOND))

    @rule()
    @precondition(lambda self: self.world.is_alive)
    def die(self) -> None:
        self.wait(self.world.die())
        self.died_at = self.clock.now()

    @rule(seconds=st.sampled_from((0, 5, 25)))
    @precondition(lambda self: not self.world.is_alive)
    def come_back(self, seconds: int) -> None:
        self.wait(self.clock.advance(seconds * SECOND))
        self.outages.append((self.died_at, self.clock.now()))
        self.wait(self.world.revive())
        self.wait(self.clock.advance(10 * MILLISECOND))

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def no_run_is_sent_twice_for_one_attempt(self) -> None:
        if not hasattr(self, "world"):
            return
        sent = self.world.caller.sent
        for call in sent[self.seen_calls :]:
            self.calls[call.header("X-Ksana-Run-Id"), call.header("X-Ksana-Attempt")] += 1
        self.seen_calls = len(sent)
        assert all(count == 1 for count in self.calls.values()), self.calls
        assert not self.sent_again, "a call whose outcome is unknown was sent again"

    @invariant()
    def runs_are_as_the_contract_says(self) -> None:
        if not hasattr(self, "world"):
            return
        runs = self.all_runs()
        slots = Counter((run.task_id, run.slot_at) for run in runs if run.slot_at is not None)
        assert all(count == 1 for count in slots.values()), "a slot has two runs"
        for run in runs:
            known = self.final.get(run.id)
            assert known in (None, run.status), f"run {run.id} was {known}, is {run.status}"
            if run.status in RUN.final:
                self.final[run.id] = run.status
                assert run.end_time is not None
                assert run.held_by is None
            self.check_attempts(run)
        for twin in self.twins:
            own = [run for run in runs if run.task_id == twin.id]
            self.check_concurrency(twin, own)
            self.check_made_up(twin, own)

    def check_made_up(self, twin: Twin, runs: list[Run]) -> None:
        """Of the slots of one outage as many have a run as the policy allows."""
        definition = twin.task.definition
        allowed = {"SKIP": 0, "FIRE_NOW": 1, "CATCH_UP_LIMITED": definition.catchup_limit}
        for died_at, back_at in self.outages:
            made_up = [run for run in runs if died_at < (run.slot_at or 0) <= back_at]
            assert len(made_up) <= allowed[definition.misfire_policy], "an outage was made up twice"

    def check_attempts(self, run: Run) -> None:
        definition = next(t.task.definition for t in self.twins if t.id == run.task_id)
        assert run.attempt <= definition.retry.max_retries + 1, "more attempts than allowed"

    def check_concurrency(self, twin: Twin, runs: list[Run]) -> None:
        definition = twin.task.definition
        if definition.concurrency_policy == "PARALLEL":
            return
        counted = [run for run in runs if run.is_counted]
        active = [run for run in counted if run.status in RUN_ACTIVE or run.ready_host is not None]
        assert len(active) <= definition.max_concurrency, "more runs than the limit are active"

    @invariant()
    def every_change_was_a_legal_move(self) -> None:
        if not hasattr(self, "world"):
            return
        states: dict[str, str] = {}
        for event in self.events():
            new = EVENT_STATES.get(event.type)
            if event.entity_type != "RUN" or new is None:
                continue
            old = states.get(event.entity_id)
            if old is None:
                assert new in RUN.initial, event
            elif (old, new) != ("SCHEDULED", "SCHEDULED"):
                assert RUN.allows(old, new), f"run {event.entity_id}: {old} to {new}"
            states[event.entity_id] = new
        for run in self.all_runs():
            assert states[str(run.id)] == run.status, f"run {run.id} changed without an event"

    @invariant()
    def every_slot_left_a_trace(self) -> None:
        if not hasattr(self, "world") or not self.world.is_alive:
            return
        runs = self.all_runs()
        for twin in self.twins:
            if twin.is_deleted:
                continue
            traced = {run.slot_at for run in runs if run.task_id == twin.id}
            spans = [
                (data["first"], data["last"])
                for event in self.events()
                if event.type == "TASK_MISFIRED" and event.entity_id == str(twin.id)
                for data in [data_of(event)]
            ]
            for slot in twin.expected_slots(self.clock.now()) - traced:
                shown = format_instant(slot)
                assert any(first <= shown <= last for first, last in spans), (
                    f"slot {shown} of task {twin.id} left no run and no misfire"
                )

    def check_that_everything_ends(self) -> None:
        """With the server up and targets that answer, every run comes to its end."""
        self.mood = "fine"
        if not self.world.is_alive:
            self.outages.append((self.died_at, self.clock.now()))
            self.wait(self.world.revive())
        for twin in self.twins:
            if not twin.is_deleted and twin.off_since is None:
                self.wait(self.world.tasks.set_enabled(twin.id, False))
                twin.off_since = self.clock.now()
        for _ in range(60):
            self.wait(self.clock.advance(MINUTE))
            if not self.open_runs():
                break
        stuck = [(run.id, run.status, run.reason) for run in self.open_runs()]
        assert not stuck, f"stuck: {stuck}"
        self.runs_are_as_the_contract_says()
        self.every_change_was_a_legal_move()

    # -- looking -----------------------------------------------------------------------------------

    def attempt(self, work: Any) -> Any:
        """A call that may be refused by a rule; anything else that it raises is a fault."""
        try:
            result = self.wait(work)
        except (ConflictError, NotFoundError):
            result = None
        self.wait(self.clock.settle())
        return result

    def pick_task(self, pick: int) -> Twin:
        return self.twins[pick % len(self.twins)]

    def all_runs(self) -> list[Run]:
        found: list[Run] = self.wait(
            self.world.store.read(lambda tx: tx.runs.list_runs(limit=5000))
        )
        return found

    def open_runs(self) -> list[Run]:
        return [run for run in self.all_runs() if run.status not in RUN.final]

    def read(self, run_id: int) -> Run:
        return next(run for run in self.all_runs() if run.id == run_id)

    def events(self) -> list[Any]:
        after = self.log[-1].id if self.log else 0
        self.log += self.wait(self.world.store.read(lambda tx: tx.events.list_after(after, 50_000)))
        return self.log
