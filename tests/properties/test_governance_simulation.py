"""Governance over months on the virtual clock: objects that fall due again and again, workers that
fail and vanish, gates that close and open, an instance that dies between two statements. Whatever
the order: nothing is forgotten, nothing is held twice, no budget is overspent, the audit verifies.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError
from ksana.base.instant import DAY, HOUR
from ksana.domain.governance import acks, hand_out
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import GovernanceJob
from ksana.engine.governance import ending
from ksana.engine.governance.sweep import sweep
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import open_store
from ksana.store.sql.governance.jobs import SqlGovernanceJobs
from ksana.store.sql.governance.objects import SqlGates
from tests.ground.governance import ME, Governing

OBJECTS, STEPS = 60, 220
TYPES = ("memory", "experience", "cognition")
FIRST = {"memory": "active", "experience": "active", "cognition": "needs_revalidate"}


def check_lost(error: ConflictError) -> None:
    """A worker is refused for one reason only: its lease is over."""
    assert error.code == "LEASE_LOST"


class World:
    """Governance, what was asked of it, and what must be true."""

    def __init__(self, governing: Governing, clock: VirtualClock, chance: random.Random) -> None:
        self.governing = governing
        self.clock = clock
        self.chance = chance
        self.held: list[GovernanceJob] = []
        self.tokens: set[int] = set()
        self.handed: dict[str, int] = {}
        self.budgets: dict[str, int] = {}
        self.closed: set[str] = set()

    async def register(self) -> None:
        for number in range(OBJECTS):
            kind = TYPES[number % 3]
            is_uncertain = number % 4 == 0
            name = f"o{number}"
            await self.governing.put(
                name,
                kind,
                status=FIRST[kind],
                epistemic_state="uncertain" if is_uncertain else "supported",
                risk_tier="high" if number % 5 == 0 else "low",
                unknown_type="ontic_unknowable" if number % 7 == 0 else None,
                auto_verify_budget=2,
                next_action_at=self.clock.now() + self.chance.randrange(20 * DAY),
                next_action="revalidate" if kind == "cognition" else "verify",
            )
            if is_uncertain:
                self.budgets[f"{kind}:{name}"] = 2

    async def step(self) -> None:
        act = self.chance.choice(
            (
                *(self.pull, self.pull, self.pull, self.ack, self.ack),
                *(self.fail, self.gate, self.plan, self.sweep),
            )
        )
        await act()
        await self.clock.advance(self.chance.randrange(DAY))

    async def pull(self) -> None:
        jobs = await self.governing.pull(self.chance.randrange(1, 20), lease_us=2 * DAY)
        for job in jobs:
            assert job.lease_token not in self.tokens
            assert not (self.closed and int(job.object_id[1:]) % 5 == 0), "a closed gate let it by"
            self.tokens.add(job.lease_token)
            self.handed[job.key] = self.handed.get(job.key, 0) + 1
        self.held += jobs

    def take(self) -> GovernanceJob | None:
        if not self.held:
            return None
        return self.held.pop(self.chance.randrange(len(self.held)))

    async def ack(self) -> None:
        for _ in range(self.chance.randrange(1, 10)):
            job = self.take()
            if job is None or self.chance.random() < 0.1:  # some workers vanish
                continue
            try:
                at = self.clock.now() + HOUR + self.chance.randrange(30 * DAY)
                await self.governing.ack(job, next_action_at=at)
            except ConflictError as error:
                check_lost(error)
                assert (await self.governing.job(job)).lease_token != job.lease_token

    async def fail(self) -> None:
        job = self.take()
        if job is None:
            return
        try:
            await self.governing.fail(job, retry_delay_us=HOUR)
        except ConflictError as error:
            check_lost(error)

    async def gate(self) -> None:
        gate = self.chance.choice(("persona", "cognition"))
        if self.chance.random() < 0.5:
            await self.governing.close_gate(gate)
            self.closed.add(gate)
        else:
            await self.governing.open_gate(gate)
            self.closed.discard(gate)

    async def plan(self) -> None:
        """Somebody sets the next action anew."""
        number = self.chance.randrange(OBJECTS)
        at = self.clock.now() + self.chance.randrange(10 * DAY)
        fields = ObjectFields(next_action_at=at)
        try:
            await self.governing.service.patch_object(TYPES[number % 3], f"o{number}", fields, ME)
        except ConflictError as error:  # what cannot be known is not asked for ever
            assert "VERIFY_LIMIT" in str(error.extra)  # noqa: PT017

    async def sweep(self) -> None:
        await self.governing.store.transact(sweep, 100)

    async def check(self) -> None:
        rows = await _list_all(self.governing)
        live: dict[str, int] = {}
        for job in rows:
            if job.status == "queued" and job.is_follow_up and job.follow_key is not None:
                live[job.key] = live.get(job.key, 0) + 1
        assert set(live.values()) <= {1}
        waiting = {job.key for job in rows if job.status in ("queued", "running", "dead_letter")}
        for number in range(OBJECTS):
            kind = TYPES[number % 3]
            governed = await self.governing.object(f"o{number}", kind)
            if governed.next_action_at is not None:
                assert governed.key in waiting, f"{governed.key} is forgotten"
            if governed.key in self.budgets:
                used = self.budgets[governed.key] - governed.auto_verify_budget
                assert used == self.handed.get(governed.key, 0) <= 2
            if governed.unknown_type == "ontic_unknowable":
                assert governed.verify_count <= 2
        await self.governing.assert_audit_is_whole()


async def _list_all(governing: Governing) -> list[GovernanceJob]:
    jobs: list[GovernanceJob] = []
    before: int | None = None
    while True:
        page: Any = await governing.service.list_jobs(GovernanceJobFilter(), before, 500)
        jobs += page.jobs
        before = page.next_before
        if before is None:
            return jobs


async def live_through(tmp_path: Path, clock: VirtualClock, seed: int) -> World:
    """Some months."""
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", clock, inline=True)
    try:
        world = World(Governing(store, clock), clock, random.Random(seed))
        await world.register()
        for number in range(STEPS):
            await world.step()
            if number % 20 == 0:
                await world.check()
        await world.check()
        return world
    finally:
        await store.close()


@pytest.mark.spec("G2", "G5", "G8", "G9", "G10", "G11", "G12")
@pytest.mark.parametrize("seed", range(4))
async def test_months_pass_and_nothing_is_forgotten_or_overspent(
    tmp_path: Path, clock: VirtualClock, seed: int
) -> None:
    began = clock.now()
    world = await live_through(tmp_path, clock, seed)
    assert sum(world.handed.values()) > OBJECTS
    assert clock.now() > began + 60 * DAY


def read_gates_once(patch: pytest.MonkeyPatch) -> None:
    """A gate read outside of the transaction: what it was when somebody looked first."""
    original = SqlGates.lock_gates
    seen: list[Any] = []

    def stale(self: SqlGates) -> Any:
        seen.append(original(self))
        return seen[0]

    patch.setattr(SqlGates, "lock_gates", stale)


def take_budgets_twice(patch: pytest.MonkeyPatch) -> None:
    original = hand_out._count_verification

    def twice(job: Any, old: Any, now: int) -> Any:
        once = original(job, old, now)
        taken = once.new.auto_verify_budget - (1 if once.new.auto_verify_budget else 0)
        new = msgspec.structs.replace(once.new, auto_verify_budget=taken)
        return msgspec.structs.replace(once, new=new)

    patch.setattr(hand_out, "_count_verification", twice)


def double_follow_ups(patch: pytest.MonkeyPatch) -> None:
    """The queued follow-up is not looked for: a second one is made."""
    patch.setattr(SqlGovernanceJobs, "lock_follow_ups", lambda self, keys: {})


def forget_follow_ups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acks, "_follow", lambda *_: None)


def count_no_token(patch: pytest.MonkeyPatch) -> None:
    """A worker that lost its lease is believed."""
    patch.setattr(ending, "refuse_holder", lambda *_: None)


@pytest.mark.parametrize(
    "plant",
    [
        read_gates_once,
        take_budgets_twice,
        double_follow_ups,
        forget_follow_ups,
        count_no_token,
    ],
    ids=lambda plant: plant.__name__,
)
async def test_planted_faults_are_found(
    tmp_path: Path,
    clock: VirtualClock,
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    found: BaseException | None = None
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        try:
            await live_through(tmp_path / str(seed), clock, seed)
        except Exception as error:
            found = error
            break
    assert found is not None
