"""The life of many governed objects, on a virtual clock."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, KsanaError
from ksana.base.instant import DAY, HOUR, MINUTE
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import GovernanceJob, GovernedObject, Rules
from ksana.engine.core.pump import Pump
from ksana.engine.governance.anchoring import purge_audit
from ksana.engine.governance.worker import GovernanceWorker
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import open_store
from tests.ground.governance import ME, Governing
from tests.ground.governance_feed import AuditFeed, Ward
from tests.ground.killing import Killed, Killer

TYPES: Final = ("memory", "experience", "cognition")


FIRST: Final = {"memory": "active", "experience": "active", "cognition": "needs_revalidate"}


WATCHES: Final = 4
"""Times a day at which workers look for work."""


LEASE: Final = 7 * HOUR


BATCH: Final = 100


ASKED: Final = ("verify", "revalidate")


KEPT, AUDIT_KEPT = 30 * DAY, 120 * DAY


LOST: Final = object()
"""The answer to a call that died."""


class Life:
    """One store over a year, and all who have to do with it."""

    def __init__(
        self, folder: Path, clock: VirtualClock, killer: Killer, seed: int, objects: int
    ) -> None:
        self.url = f"sqlite:///{folder / 'ksana.db'}"
        self.clock = clock
        self.killer = killer
        self.chance = random.Random(seed)
        self.objects = objects
        self.rules = Rules()
        self.wards: dict[str, Ward] = {}
        self.feed = AuditFeed(self.wards, self.rules.verify_limit)
        self.held: list[GovernanceJob] = []
        """What workers have, until they answer for it."""
        self.tokens: set[int] = set()
        self.deaths = 0
        self.too_late = 0
        self.loops: list[asyncio.Task[None]] = []
        self.governing: Governing

    # -- the instance ------------------------------------------------------------------------------

    async def start(self) -> None:
        store = await open_store(self.url, self.clock, inline=True)
        self.governing = Governing(store, self.clock, self.rules)
        sweep = self.governing.service.sweep
        sweep.pump = Pump("sweep", self.clock, sweep._step, DAY)
        worker = GovernanceWorker(store, self.clock, self.rules, 12 * HOUR)
        self.loops = [asyncio.ensure_future(pump.run()) for pump in (sweep.pump, worker.pump)]

    async def stop(self) -> None:
        for loop in self.loops:
            loop.cancel()
        ended = await asyncio.gather(*self.loops, return_exceptions=True)
        await self.governing.store.close()
        for end in ended:
            if not isinstance(end, asyncio.CancelledError | Killed):
                raise AssertionError("a loop ended by itself") from end

    async def die(self) -> None:
        """The process is gone; another begins."""
        self.killer.left = None
        self.deaths += 1
        await self.stop()
        await self.start()

    async def risk(self, call: Callable[[], Awaitable[Any]], of: float = 0.02) -> Any:
        """Make a call that the process may not survive."""
        if self.chance.random() < of:
            self.killer.left = self.chance.randrange(30)
        try:
            return await call()
        except Killed:
            answer = LOST
        finally:
            self.killer.left = None
        await self.die()
        return answer

    async def pass_time(self, by: int) -> None:
        """Let the loops work, which may be what the process dies of."""
        await self.risk(lambda: self.clock.advance(by), of=0.1)
        if any(loop.done() for loop in self.loops):
            await self.die()

    # -- what happens ------------------------------------------------------------------------------

    async def register(self) -> None:
        for number in range(self.objects):
            kind = TYPES[number % 3]
            is_fading = number % 5 < 2
            is_uncertain = not is_fading and number % 4 == 0
            is_unknowable = not is_fading and number % 11 == 0
            is_high = number % 7 == 0
            at = self.clock.now() + self.chance.randrange(40 * DAY)
            key = f"{kind}:o{number}"
            ward = self.wards[key] = Ward(is_high, 2 if is_uncertain else None, is_unknowable)
            ward.next_at = at
            fields = ObjectFields(
                status=FIRST[kind],
                epistemic_state="uncertain" if is_uncertain else "supported",
                risk_tier="high" if is_high else "low",
                unknown_type="ontic_unknowable" if is_unknowable else None,
                half_life_us=self.chance.randrange(60, 200) * DAY if is_fading else None,
                next_action_at=at,
                next_action="decay" if is_fading else ASKED[number % 3 == 2],
            )
            put = self.governing.service.put_object
            while await self.risk(lambda: put(*key.split(":"), fields, ME), of=0.0005) is LOST:
                put = self.governing.service.put_object

    async def live(self, days: int) -> None:
        for day in range(days):
            for _ in range(WATCHES):
                await self.watch()
            await self.change_something()
            if day % 7 == 6:
                await self.keep_house()
                await self.check()
        await self.finish()

    async def watch(self) -> None:
        """A quarter of a day: workers come back, others go and get, time passes."""
        await self.answer_for_held()
        while jobs := await self.pull():
            if self.chance.random() < 0.04:  # killed between pull and ack, with all it has
                continue
            if self.chance.random() < 0.1:  # a slow one, perhaps too slow
                self.held += jobs
                continue
            await self.end(jobs)
        await self.feed.read(self.governing.store)
        await self.pass_time(DAY // WATCHES - self.chance.randrange(2 * HOUR))
        await self.pass_time(self.chance.randrange(2 * HOUR))

    async def pull(self) -> list[GovernanceJob]:
        jobs = await self.risk(
            lambda: self.governing.pull(BATCH, "w", lease_us=LEASE, actions=ASKED)
        )
        if jobs is LOST:
            return await self.pull()
        for job in jobs:
            assert job.lease_token not in self.tokens, f"{job.job_id}: a token comes again"
            self.tokens.add(job.lease_token)
        return list(jobs)

    async def end(self, jobs: list[GovernanceJob]) -> None:
        """Answer for jobs: most are done, some failed."""
        bad = [job for job in jobs if self.chance.random() < 0.05 or is_cursed(job)]
        for job in bad:
            await self.risk(lambda job=job: self.expect_held(job, self.governing.fail(job)))
        done = [job for job in jobs if job not in bad]
        if not done:
            return
        acks = [self.governing.ack_of(job, next_action_at=self.plan(job)) for job in done]
        answers = await self.risk(lambda: self.governing.service.ack_batch(acks, ME))
        if answers is LOST and self.chance.random() < 0.5:
            # A worker that got no answer asks again, and is answered the same.
            answers = await self.governing.service.ack_batch(acks, ME)
        for answer in [] if answers is LOST else answers:
            assert not isinstance(answer, KsanaError), answer.message
            assert answer.status == "succeeded"

    def plan(self, job: GovernanceJob) -> int | None:
        """When the object falls due next; a few never do."""
        is_last = self.chance.random() < 0.01
        at = None if is_last else self.clock.now() + HOUR + self.chance.randrange(60 * DAY)
        self.feed.intended[job.job_id] = at
        return at

    async def expect_held(self, job: GovernanceJob, answer: Awaitable[GovernanceJob]) -> None:
        assert (await answer).attempt == job.attempt + 1

    async def answer_for_held(self) -> None:
        """The slow ones: in time, or refused."""
        held, self.held = self.held, []
        late = [job for job in held if (job.lease_expires_at or 0) <= self.clock.now()]
        for job in late:
            with pytest.raises(ConflictError, match="is not held by this call"):
                await self.governing.ack(job, next_action_at=self.clock.now() + DAY)
            self.too_late += 1
        in_time = [job for job in held if job not in late]
        slower = [job for job in in_time if self.chance.random() < 0.3]
        self.held += slower
        await self.end([job for job in in_time if job not in slower])

    async def change_something(self) -> None:
        service = self.governing.service
        act = self.chance.randrange(6)
        gate = self.chance.choice(("persona", "cognition"))
        if act < 2:
            state = "closed" if act == 0 and self.chance.random() < 0.5 else "open"
            await self.risk(lambda: service.set_gate(gate, "", state, "a test", ME), of=0.1)
        elif act == 2:
            await self.risk(lambda: service.requeue_all(GovernanceJobFilter(), ME), of=0.1)
        else:
            for _ in range(max(1, self.objects // 1000)):
                await self.risk(self.attend)

    async def attend(self) -> None:
        """Somebody grants an object another verification, and sets when it is due."""
        key = self.chance.choice(list(self.wards))
        governed = await self.governing.object(*reversed(key.split(":")))
        if governed.next_action == "decay":
            return
        at = self.clock.now() + self.chance.randrange(10 * DAY)
        budget = governed.auto_verify_budget + (1 if governed.epistemic_state == "uncertain" else 0)
        fields = ObjectFields(next_action_at=at, auto_verify_budget=budget)
        try:
            await self.governing.service.patch_object(*key.split(":"), fields, ME)
        except ConflictError as error:
            assert self.wards[key].is_unknowable, error.message  # noqa: PT017

    async def keep_house(self) -> None:
        """What is old goes, and the ends of the chains are written down."""
        store, now = self.governing.store, self.clock.now()
        await self.governing.purge_jobs(now - KEPT)
        await self.risk(lambda: store.transact(purge_audit, now - AUDIT_KEPT, 20_000), of=0.2)
        await self.risk(self.governing.anchor, of=0.2)

    # -- what must hold ----------------------------------------------------------------------------

    async def check(self) -> None:
        """Rows and audit agree, and nothing lies about that should have been done."""
        await self.feed.read(self.governing.store)
        jobs = await self.governing.store.read(_list_live)
        assert {job.job_id for job in jobs if job.status == "running"} == {
            job_id for ward in self.wards.values() for job_id in ward.held
        }
        assert {job.job_id for job in jobs if job.status == "queued"} == {
            job_id for ward in self.wards.values() for job_id in ward.queued
        }
        assert {job.job_id for job in jobs if job.follow_key is not None} == {
            ward.follow_up for ward in self.wards.values() if ward.follow_up is not None
        }
        for job in jobs:
            if job.status == "queued" and job.position == 0:
                since = max(job.run_at, job.updated_at)  # or just woken by a gate
                assert since > self.clock.now() - 2 * DAY, f"{job.job_id} is overlooked"
        objects = await self.governing.store.read(_read_objects, list(self.wards))
        for key, ward in self.wards.items():
            governed = objects[key]
            if ward.granted is not None:
                left = ward.granted - ward.pulls
                assert governed.auto_verify_budget == left, f"{key} has {left} verifications left"
            if governed.next_action != "decay":
                assert governed.verify_count == ward.pulls
            assert (governed.next_action_at is None) == (ward.next_at is None), key

    async def finish(self) -> None:
        """Gates open, dead letters are queued again, workers work: in the end nothing is left that
        is due, and every object has a next action, or a reason to have none."""
        for gate in ("persona", "cognition"):
            await self.governing.open_gate(gate)
        await self.clock.advance(LEASE + MINUTE)
        await self.governing.service.requeue_all(GovernanceJobFilter(), ME)
        self.held.clear()
        for _ in range(3):
            while jobs := await self.governing.pull(BATCH, "w", lease_us=LEASE, actions=ASKED):
                acks = [self.governing.ack_of(job, next_action_at=self.plan(job)) for job in jobs]
                await self.governing.service.ack_batch(acks, ME)
            await self.clock.advance(13 * HOUR)
        await self.check()
        assert all(not ward.held and not ward.dead for ward in self.wards.values())
        overdue = [
            job
            for job in await self.governing.store.read(_list_live)
            if job.run_at < self.clock.now() - DAY
        ]
        assert overdue == []
        await self.governing.anchor()
        await self.governing.assert_audit_is_whole()


def is_cursed(job: GovernanceJob) -> bool:
    """Whatever a worker does with it, it fails."""
    return int(job.object_id[1:]) % 97 == 3


def _list_live(tx: Any) -> list[GovernanceJob]:
    jobs: list[GovernanceJob] = []
    for status in ("queued", "running"):
        before = None
        while page := tx.governance.list_jobs(GovernanceJobFilter(status=status), before, 5000):
            jobs += page
            before = page[-1].seq
    return jobs


def _read_objects(tx: Any, keys: list[str]) -> dict[str, GovernedObject]:
    found: dict[str, GovernedObject] = {}
    for start in range(0, len(keys), 1000):
        found |= tx.objects.read(keys[start : start + 1000])
    return found
