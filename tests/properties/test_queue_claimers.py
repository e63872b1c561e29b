"""Two claimers and one job, in a thousand random orders of what they may do: at no time do two hold
one token, and what the loser of a claim sends changes nothing."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import KsanaError
from ksana.base.instant import SECOND
from ksana.domain.leases import ANYBODY, Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import LeasedJob, NewJob
from ksana.engine.queue.leasing import sweep
from ksana.service.queue.claims import Claim
from ksana.service.queue.jobs import Report
from ksana.service.queue.leases import Heartbeat
from ksana.service.queue.service import QueueService
from ksana.store.sql import open_store

ORDERS = 1000
STEPS = 12


class Claimer:
    """A worker that remembers what it was given, and goes on using it when it is no longer its
    own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.claim_token = 0
        self.lease: Any = None

    def prove(self, dice: random.Random, token: int) -> Proof:
        """With its token, with its token and name, or with nothing."""
        return dice.choice([Proof(token), Proof(token, self.name), ANYBODY])


class Scene:
    """One job and two claimers. `holder` is who may act by the rules, with which token."""

    def __init__(self, queue: QueueService, dice: random.Random, clock: VirtualClock) -> None:
        self.queue, self.dice, self.clock = queue, dice, clock
        self.claimers = [Claimer("a"), Claimer("b")]
        self.job_id = ""
        self.claims = 0
        self.tokens: dict[int, str] = {}
        """Every token ever given out, and to whom."""

    async def begin(self) -> None:
        (self.job_id,) = self.queue.new_ids(1)
        kind = class_of("a", "t", 1, ())
        await self.queue.submit(
            NewJob(self.job_id, "NORMAL", kind, "{}", "{}", None, 1000, None, None)
        )

    async def step(self) -> None:
        one = self.dice.choice(self.claimers)
        act = self.dice.choice(
            [self.claim, self.lease, self.report, self.beat, self.release, self.wait, self.wait]
        )
        await act(one)

    def given(self, token: int, to: Claimer) -> None:
        assert token, "a token is never empty"
        assert self.tokens.get(token, to.name) == to.name, "two holders of one token"
        self.tokens[token] = to.name

    async def check(self, proof: Proof, one: Claimer, token: int, outcome: Any) -> None:
        """What was accepted came from who holds the job."""
        job = await self.queue.get_job(self.job_id)
        if isinstance(outcome, KsanaError):
            return
        if proof == ANYBODY:
            assert job.claims == 1, "a caller without proof was believed after a second claim"
        else:
            assert token in self.tokens and self.tokens[token] == one.name

    async def claim(self, one: Claimer) -> None:
        with_lease = self.dice.random() < 0.4
        claimed = await self.queue.claim(Claim(one.name, Wants(), 1, with_lease, 20))
        if not claimed.taken:
            return
        (change,) = claimed.changes
        assert change.claim_token not in self.tokens, "a token was given out twice"
        self.given(change.claim_token, one)
        one.claim_token = change.claim_token
        one.lease = claimed.leases[0] if with_lease else None

    async def attempt(self, work: Any) -> Any:
        try:
            return await work
        except KsanaError as error:
            return error

    async def lease(self, one: Claimer) -> None:
        proof = self.prove_claim(one)
        before = await self.queue.get_job(self.job_id)
        got = await self.attempt(self.queue.request_lease(self.job_id, 20, proof))
        await self.check(proof, one, one.claim_token, got)
        if isinstance(got, LeasedJob):
            if proof != ANYBODY:
                assert before.claim_token == one.claim_token, "a lost claim got a lease"
            owner = self.tokens[before.claim_token]
            self.given(got.lease.lease_token, self.named(owner))
            if owner == one.name:
                one.lease = got.lease

    def named(self, name: str) -> Claimer:
        return next(one for one in self.claimers if one.name == name)

    def prove_claim(self, one: Claimer) -> Proof:
        return one.prove(self.dice, one.claim_token)

    async def report(self, one: Claimer) -> None:
        proof = self.prove_claim(one)
        before = await self.queue.get_job(self.job_id)
        got = await self.attempt(
            self.queue.report(Report(self.job_id, None, self.dice.random(), one.name, proof))
        )
        await self.check(proof, one, one.claim_token, got)
        if not isinstance(got, KsanaError) and proof != ANYBODY:
            assert before.claim_token == one.claim_token
        if isinstance(got, KsanaError):
            assert await self.queue.get_job(self.job_id) == before, "a refusal changed the job"

    async def beat(self, one: Claimer) -> None:
        if one.lease is not None:
            proof = one.prove(self.dice, one.lease.lease_token)
            beat = Heartbeat(one.lease.lease_id, proof=proof)
            got = await self.attempt(self.queue.heartbeat(beat))
            await self.check(proof, one, one.lease.lease_token, got)

    async def release(self, one: Claimer) -> None:
        if one.lease is None:
            return
        proof = one.prove(self.dice, one.lease.lease_token)
        before = await self.queue.get_job(self.job_id)
        item = Release(one.lease.lease_id, "FAILED", proof=proof, error=one.name)
        got = await self.attempt(self.queue.release(item))
        await self.check(proof, one, one.lease.lease_token, got)
        after = await self.queue.get_job(self.job_id)
        if after.state != before.state and not isinstance(got, KsanaError):
            assert before.lease_id == one.lease.lease_id, "a lost lease ended the job"

    async def wait(self, _: Claimer) -> None:
        self.clock.step(self.dice.choice([1, 5, 21, 61]) * SECOND)
        if self.dice.random() < 0.7:
            await self.queue._store.transact(sweep, 10)


@pytest.mark.fault("F12")
@pytest.mark.spec("Q3", "Q9", "X12")
def test_two_claimers_in_a_thousand_orders_never_hold_one_token(tmp_path: Path) -> None:
    async def run() -> None:
        clock = VirtualClock()
        store = await open_store(f"sqlite:///{tmp_path}/k.db", clock, inline=True)
        try:
            for seed in range(ORDERS):
                queue = QueueService(store, clock, Limits(5))
                scene = Scene(queue, random.Random(seed), clock)
                await scene.begin()
                for _ in range(STEPS):
                    await scene.step()
                clock.step(61 * SECOND)
                await store.transact(sweep, 100)
                await queue.cancel(scene.job_id, None)
        finally:
            await store.close()

    asyncio.run(run())
