"""Steps that are taken by the service of governance and by its model, and what must agree."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
)
from msgspec import UNSET

from ksana.base.clock import VirtualClock
from ksana.base.errors import KsanaError
from ksana.base.instant import SECOND
from ksana.domain.governance.objects import ObjectFields
from ksana.engine.governance.sweep import sweep
from ksana.store.sql import open_store
from tests.ground.governance import ME, Governing
from tests.ground.killing import Killed, killing
from tests.properties.governance_model import ABSENT, JobTwin, Model, Refused
from tests.properties.governance_rows import bind, differ, read_all

MEMORY = Path("/dev/shm")
LEASE = 20 * SECOND

Call = Callable[[Governing], Awaitable[Any]]
Apply = Callable[[Model], Any]
Step = tuple[Call, Apply]


class GovernanceSteps(RuleBasedStateMachine):
    """A service beside its model: what can be done to both, alone, at once or killed in the middle,
    and how they are compared."""

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        # In memory where there is such a folder: nothing here is about the disk.
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.clock = VirtualClock()
        self.model = Model()
        self.tokens: set[int] = set()
        self.old: list[tuple[str, int]] = []
        """Tokens that were somebody's once, with their jobs."""
        self._open()

    def _open(self) -> None:
        url = f"sqlite:///{Path(self.folder.name) / 'ksana.db'}"
        self.governing = Governing(self.wait(open_store(url, self.clock, inline=True)), self.clock)

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if not hasattr(self, "governing"):
            return
        try:
            self.check_records()
        finally:
            self.wait(self.governing.store.close())
            self.loop.close()
            self.folder.cleanup()

    @property
    def now(self) -> int:
        return self.clock.now()

    # -- one step on both sides --------------------------------------------------------------------

    def do(self, call: Call, apply: Apply) -> Any:
        """Make a call; it answers, or refuses, as the model says, and leaves what the model has."""
        expected, refusal = _apply(apply, self.model)
        answer, error = self.wait(_try(call, self.governing))
        assert error == refusal, f"answered {error or 'well'}, expected {refusal or 'no refusal'}"
        self.compare([self.model])
        if isinstance(expected, list):
            assert [job.job_id for job in answer] == [job.id for job in expected]
        return answer

    def do_and_die(self, call: Call, apply: Apply, steps: int) -> None:
        """The process ends at some statement of the call: all of it happened, or nothing."""
        after = self.model.copy()
        _apply(apply, after)
        with killing() as killer:
            killer.left = steps
            self.wait(_try(call, self.governing))
        self.wait(self.governing.store.close())
        self._open()
        self.compare([self.model, after])

    def race(self, first: Step, second: Step) -> None:
        """Two calls at once: what they leave is what one after the other leaves, in either
        order."""
        outcomes = []
        for steps in ((first, second), (second, first)):
            model = self.model.copy()
            for _, apply in steps:
                _apply(apply, model)
            outcomes.append(model)

        async def both() -> None:
            await asyncio.gather(*(_try(call, self.governing) for call, _ in (first, second)))

        self.wait(both())
        self.compare(outcomes)

    def compare(self, models: list[Model]) -> None:
        """One of the models must be what the store has; go on with it."""
        jobs, objects, gates = self.wait(self.governing.store.read(read_all))
        wrong: list[str] = []
        for model in models:
            fault = bind(model, jobs) or differ(model, jobs, objects, gates)
            if fault is None:
                self.model = model
                break
            wrong.append(fault)
        else:
            raise AssertionError("; or ".join(wrong))
        for job in self.model.list_jobs("running"):
            held = (job.id or "", job.token)
            if held not in self.old:
                assert job.token not in self.tokens, "a token comes again"
                self.tokens.add(job.token)
                self.old.append(held)

    # -- what happens ------------------------------------------------------------------------------

    def pull_step(self, limit: int, actions: tuple[str, ...] = (), order: str = "run_at") -> Step:
        now = self.now
        return (
            lambda g: g.pull(limit, lease_us=LEASE, actions=actions, order=order),
            lambda m: m.pull(
                limit, now, LEASE, actions=actions, is_urgent_first=order == "priority"
            ),
        )

    def gate_step(self, setting: str, state: str) -> Step:
        gate, _, scope = setting.partition("/")
        return (
            lambda g: g.service.set_gate(gate, scope, state, None, ME),
            lambda m: m.set_gate(setting, state),
        )

    def change_step(self, key: str, fields: dict[str, Any], *, is_put: bool) -> Step:
        kind, _, name = key.partition(":")
        sent = ObjectFields(**{_SENT_AS.get(member, member): fields[member] for member in fields})
        return (
            lambda g: (g.service.put_object if is_put else g.service.patch_object)(
                kind, name, sent, ME
            ),
            lambda m: m.change(key, fields, is_put=is_put),
        )

    def ack_step(self, job: JobTwin, token: int, next_at: Any = ABSENT, **more: str | None) -> Step:
        job_id, now = job.id or "", self.now
        action, status = more.get("action"), more.get("status")
        sent = {
            "next_action_at": UNSET if next_at == ABSENT else next_at,
            "next_action": action,
            "fields": ObjectFields(status=UNSET if status is None else status),
        }
        return (
            lambda g: g.ack(held(job_id, token), **sent),
            lambda m: m.ack(
                m.find(job_id), token, now, next_at=next_at, action=action, status=status
            ),
        )

    def fail_step(self, job: JobTwin, token: int, delay: int, *, is_final: bool) -> Step:
        job_id, now = job.id or "", self.now
        return (
            lambda g: g.fail(held(job_id, token), retry_delay_us=delay, is_final=is_final),
            lambda m: m.fail(m.find(job_id), token, now, delay, is_final=is_final),
        )

    def sweep_step(self) -> Step:
        now = self.now
        return (lambda g: g.store.transact(sweep, 100), lambda m: m.sweep(now))

    # -- looking -----------------------------------------------------------------------------------

    def pick(self, status: str, number: int) -> JobTwin | None:
        found = self.model.list_jobs(status)
        return found[number % len(found)] if found else None

    def check_records(self) -> None:
        """The audit is whole, and every job's last entry and last event say what it is now."""
        if not self.model.jobs:
            return
        self.wait(self.governing.assert_audit_is_whole())
        jobs, _, _ = self.wait(self.governing.store.read(read_all))
        audit = self.wait(
            self.governing.store.read(lambda tx: tx.audit.list_chain(0, 0, 1 << 43, 1 << 20))
        )
        events = self.wait(self.governing.store.read(lambda tx: tx.events.list_after(0, 1 << 20)))
        for job in jobs:
            entries = [row for row in audit if row.job_id == job.job_id]
            entries = [row for row in entries if row.event_type.startswith("job.")]
            assert f'"status":"{job.status}"' in _last_status(row.after for row in entries), job
            told = [event.type for event in events if event.entity_id == job.job_id]
            assert told[-1] in _EVENTS[job.status], f"{job.status} after {told}"


_SENT_AS = {
    "epistemic": "epistemic_state",
    "unknown": "unknown_type",
    "risk": "risk_tier",
    "next_at": "next_action_at",
    "budget": "auto_verify_budget",
}
_EVENTS = {
    "queued": (
        "GOV_JOB_ENQUEUED",
        "GOV_JOB_RETRYING",
        "GOV_JOB_MOVED",
        "GOV_JOB_DEFERRED",
        "GOV_JOB_WOKEN",
        "GOV_JOB_REQUEUED",
        "GATE_DEFERRED_LONG",
    ),
    "running": ("GOV_JOB_PULLED",),
    "succeeded": ("GOV_JOB_SUCCEEDED",),
    "failed": ("GOV_JOB_FAILED",),
    "dead_letter": ("GOV_JOB_DEAD_LETTER",),
}


def _apply(apply: Apply, model: Model) -> tuple[Any, str | None]:
    try:
        return apply(model), None
    except Refused as refused:
        return None, str(refused)


async def _try(call: Call, governing: Governing) -> tuple[Any, str | None]:
    try:
        return await call(governing), None
    except KsanaError as error:
        return None, error.code
    except Killed:
        return None, None


def held(job_id: str, token: int) -> Any:
    """As much of a job as an ack needs of it."""
    job: Any = type("Held", (), {"job_id": job_id, "lease_token": token})
    return job


def _last_status(texts: Iterable[str | None]) -> str:
    return next((text for text in reversed(list(texts)) if text and '"status"' in text), "")
