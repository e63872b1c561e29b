"""Governance against a model of it: any order of calls, expiries, gate changes, races and deaths
between two statements, compared after every step, row by row. And faults that it must find."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    rule,
    run_state_machine_as_test,
)

from ksana.base.instant import DAY, MILLISECOND, SECOND
from ksana.domain.governance.records import URGENCY
from tests.ground.governance import ME
from tests.properties.governance_faults import FAULTS
from tests.properties.governance_model import ABSENT
from tests.properties.governance_rows import KEYS, ids_of
from tests.properties.governance_steps import LEASE, GovernanceSteps, held

ACTIONS = ("verify", "revalidate", "decay", "archive", "reinstate-check")
STATUSES = ("active", "stale", "archived", "needs_review", "verified")
SETTINGS = ("persona/", "cognition/", "persona/memory", "cognition/*:verify")
STATES = {
    "memory": (None, "active", "stale", "archived", "verified"),
    "experience": (None, "active", "archived", "needs_review"),
    "cognition": (None, "active", "stale", "archived"),
}
DELAYS = (0, 400 * MILLISECOND, SECOND, 30 * SECOND)


class GovernanceMachine(GovernanceSteps):
    """Calls on one side, the model on the other."""

    @rule(
        key=st.sampled_from(KEYS),
        epistemic=st.sampled_from(("uncertain", "supported", None)),
        unknown=st.sampled_from(("ontic_unknowable", None)),
        risk=st.sampled_from(("high", "low")),
        later=st.sampled_from((None, *DELAYS)),
        status=st.sampled_from((None, *STATUSES)),
    )
    def put(
        self,
        key: str,
        epistemic: str | None,
        unknown: str | None,
        risk: str,
        later: int | None,
        status: str | None,
    ) -> None:
        is_new = key not in self.model.objects
        fields: dict[str, Any] = {"epistemic": epistemic, "unknown": unknown, "risk": risk}
        if status is not None:
            fields["status"] = "active" if is_new else status
            if not is_new and status not in STATES[key.partition(":")[0]]:
                del fields["status"]
        if later is not None:
            fields["next_at"] = self.now + later
        self.do(*self.change_step(key, fields, is_put=True))

    @rule(
        key=st.sampled_from(KEYS),
        later=st.sampled_from((None, *DELAYS)),
        action=st.sampled_from((None, *ACTIONS)),
        budget=st.sampled_from((ABSENT, 0, 1, 3)),
    )
    def patch(self, key: str, later: int | None, action: str | None, budget: Any) -> None:
        fields: dict[str, Any] = {"next_at": None if later is None else self.now + later}
        if action is not None:
            fields["next_action"] = action
        if budget != ABSENT:
            fields["budget"] = budget
        self.do(*self.change_step(key, fields, is_put=False))

    @rule(
        key=st.sampled_from(KEYS),
        action=st.sampled_from(ACTIONS),
        priority=st.sampled_from(tuple(URGENCY)),
        later=st.sampled_from(DELAYS),
    )
    def enqueue(self, key: str, action: str, priority: str, later: int) -> None:
        kind, _, name = key.partition(":")
        job_id = self.governing.service.new_id()
        run_at = self.now + later
        self.do(
            lambda g: g.enqueue(
                name,
                object_type=kind,
                action=action,
                priority=priority,
                run_at=run_at,
                job_id=job_id,
                idempotency_key=job_id,
            ),
            lambda m: m.enqueue(key, action, URGENCY[priority], run_at, job_id),
        )

    @rule(
        limit=st.integers(1, 4),
        actions=st.sampled_from(((), ("verify",), ("verify", "decay"))),
        order=st.sampled_from(("run_at", "priority")),
    )
    def pull(self, limit: int, actions: tuple[str, ...], order: str) -> None:
        self.do(*self.pull_step(limit, actions, order))

    @rule(
        key=st.sampled_from(KEYS),
        what=st.sampled_from((("uncertain", None), ("supported", "ontic_unknowable"))),
    )
    def verify_one_again_and_again(self, key: str, what: tuple[str, str | None]) -> None:
        """Several hand-outs of one object at once, which single steps seldom come to."""
        self.put(key, *what, "low", None, None)
        for _ in range(3):
            self.enqueue(key, "verify", "medium", 0)
        self.pull(4, (), "run_at")

    @rule(key=st.sampled_from(KEYS), setting=st.sampled_from(SETTINGS), is_opened=st.booleans())
    def hold_a_risky_one_up(self, key: str, setting: str, is_opened: bool) -> None:
        self.do(*self.gate_step(setting, "closed"))
        self.put(key, None, None, "high", 0, None)
        self.pull(4, (), "run_at")
        if is_opened:
            self.do(*self.gate_step(setting, "open"))

    @rule(key=st.sampled_from(KEYS))
    def take_the_urgent_one_first(self, key: str) -> None:
        self.enqueue(key, "decay", "low", 0)
        self.clock.step(SECOND)
        self.enqueue(key, "decay", "high", 0)
        self.pull(1, (), "priority")

    @rule(key=st.sampled_from(KEYS), is_ack=st.booleans())
    def come_back_after_another_took_it(self, key: str, is_ack: bool) -> None:
        self.enqueue(key, "decay", "high", 0)
        self.pull(1, (), "priority")
        old = self.pick("running", -1)
        if old is None:
            return
        token = old.token
        self.clock.step(LEASE)
        self.do(*self.sweep_step())
        self.pull(4, (), "run_at")
        if is_ack:
            self.do(*self.ack_step(old, token))
        else:
            self.do(*self.fail_step(old, token, 0, is_final=False))

    @rule(
        pick=st.integers(0, 99),
        later=st.sampled_from((ABSENT, None, *DELAYS)),
        action=st.sampled_from((None, *ACTIONS)),
        status=st.sampled_from((None, *STATUSES)),
        is_repeated=st.booleans(),
    )
    def ack(
        self, pick: int, later: Any, action: str | None, status: str | None, is_repeated: bool
    ) -> None:
        job = self.pick("running", pick)
        if job is None:
            return
        if status not in STATES[job.key.partition(":")[0]]:
            status = None
        next_at = later if later in (ABSENT, None) else self.now + later
        token = job.token
        for _ in range(2 if is_repeated else 1):
            self.do(*self.ack_step(job, token, next_at, action=action, status=status))

    @rule(pick=st.integers(0, 99), delay=st.sampled_from(DELAYS), is_final=st.booleans())
    def fail(self, pick: int, delay: int, is_final: bool) -> None:
        job = self.pick("running", pick)
        if job is not None:
            self.do(*self.fail_step(job, job.token, delay, is_final=is_final))

    @rule(key=st.sampled_from(KEYS), is_planned=st.booleans(), by_lease=st.booleans())
    def use_up_all_attempts(self, key: str, is_planned: bool, by_lease: bool) -> None:
        if is_planned:
            self.put(key, None, None, "low", 0, None)
        else:
            self.enqueue(key, "decay", "high", 0)
        for _ in range(3):
            self.pull(4, (), "priority")
            for job in [job for job in self.model.list_jobs("running") if job.key == key]:
                if by_lease:
                    self.clock.step(LEASE)
                    self.do(*self.sweep_step())
                    break
                self.do(*self.fail_step(job, job.token, 0, is_final=False))

    @rule(pick=st.integers(0, 99))
    def renew(self, pick: int) -> None:
        job = self.pick("running", pick)
        if job is not None:
            job_id, token, now = job.id or "", job.token, self.now
            self.do(
                lambda g: g.renew(held(job_id, token), LEASE),
                lambda m: m.renew(m.find(job_id), token, now, LEASE),
            )

    @rule(pick=st.integers(0, 99), is_ack=st.booleans())
    def zombie(self, pick: int, is_ack: bool) -> None:
        """A worker comes back whose token is not the one any more, or that ended the job before."""
        known = {job.id: job for job in self.model.jobs}
        old = [(job, token) for job, token in self.old if job in known]
        if not old:
            return
        job_id, token = old[pick % len(old)]
        job = known[job_id]
        if is_ack:
            status = "needs_review" if job.key.startswith("experience") else "stale"
            self.do(*self.ack_step(job, token, self.now + DAY, status=status))
        else:
            self.do(*self.fail_step(job, token, 0, is_final=False))

    @rule(
        setting=st.sampled_from(SETTINGS),
        state=st.sampled_from(("open", "degraded", "closed", "closed")),
    )
    def set_gate(self, setting: str, state: str) -> None:
        self.do(*self.gate_step(setting, state))

    @rule()
    def sweep(self) -> None:
        self.do(*self.sweep_step())

    @rule(pick=st.integers(0, 99))
    def requeue(self, pick: int) -> None:
        job = self.pick("dead_letter", pick)
        if job is not None:
            job_id, now = job.id or "", self.now
            self.do(
                lambda g: g.service.requeue(job_id, ME), lambda m: m.requeue(m.find(job_id), now)
            )

    @rule()
    def purge(self) -> None:
        """What ended long ago goes; dead letters stay."""
        before = self.now + 1
        ended = [job for job in self.model.jobs if job.status in ("succeeded", "failed")]
        self.do(
            lambda g: g.purge_jobs(before),
            lambda m: setattr(m, "jobs", [job for job in m.jobs if job.id not in ids_of(ended)]),
        )

    @rule(by=st.sampled_from((400 * MILLISECOND, SECOND, LEASE // 2, LEASE)))
    def let_time_pass(self, by: int) -> None:
        self.clock.step(by)

    @rule(
        setting=st.sampled_from(("persona/", "cognition/")),
        state=st.sampled_from(("open", "closed")),
        key=st.sampled_from(KEYS),
    )
    def pull_while_a_gate_changes(self, setting: str, state: str, key: str) -> None:
        self.do(*self.gate_step(setting, "closed" if state == "open" else "open"))
        self.put(key, None, None, "high", 0, None)
        self.race(self.pull_step(4), self.gate_step(setting, state))

    @rule(limit=st.integers(1, 3))
    def pull_twice_at_once(self, limit: int) -> None:
        self.race(self.pull_step(limit), self.pull_step(limit))

    @rule(pick=st.integers(0, 99), later=st.sampled_from(DELAYS))
    def ack_while_the_object_changes(self, pick: int, later: int) -> None:
        job = self.pick("running", pick)
        if job is not None:
            fields = {"next_at": self.now + later + SECOND}
            self.race(
                self.ack_step(job, job.token, self.now + later),
                self.change_step(job.key, fields, is_put=False),
            )

    @rule(
        pick=st.integers(0, 99),
        steps=st.integers(0, 25),
        what=st.sampled_from(("pull", "ack", "fail", "sweep", "gate", "change")),
    )
    def die(self, pick: int, steps: int, what: str) -> None:
        job = self.pick("running", pick)
        step = self.pull_step(3)
        if what in ("ack", "fail") and job is not None:
            step = (
                self.ack_step(job, job.token, self.now + SECOND)
                if what == "ack"
                else self.fail_step(job, job.token, 0, is_final=False)
            )
        elif what == "sweep":
            step = self.sweep_step()
        elif what == "gate":
            step = self.gate_step("persona/", ("open", "closed")[pick % 2])
        elif what == "change":
            fields = {"next_at": self.now + SECOND}
            step = self.change_step(KEYS[pick % 3], fields, is_put=True)
        self.do_and_die(*step, steps)


TestGovernanceModel = pytest.mark.spec("G2", "G3", "G4", "G5", "G8", "G9", "G10", "G11")(
    GovernanceMachine.TestCase
)
TestGovernanceModel.settings = GovernanceSettings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_model_finds_a_fault_put_in_on_purpose(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[fault](monkeypatch)
    # Longer than above: it ends with the first find, and which examples come depends on the text of
    # this very file.
    longer = settings(
        GovernanceSettings,
        max_examples=400,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises(Exception):  # a store that breaks has found it too
        run_state_machine_as_test(GovernanceMachine, settings=longer)
