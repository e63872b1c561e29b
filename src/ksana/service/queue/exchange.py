"""Leases that end and claims that are served in the same commit: a unit goes from one lease to the
next, and is set aside for nobody in between.

With a release its caller may claim what it goes on with, and claims that wait for units are served
by the release that frees some. Neither waits for a lock that another instance may hold: what a
claim does not get here it gets by itself, a commit later.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ksana.base.errors import KsanaError
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.jobs import LeasedJob
from ksana.engine.queue.claims import ClaimPoll
from ksana.ports.queue.tables import QueueTx
from ksana.ports.store import Store
from ksana.service.core.batching import Batcher
from ksana.service.queue.claims import NOTHING, Claim, Claimed
from ksana.service.queue.class_cache import JobClassCache
from ksana.service.queue.releases import (
    Released,
    ReleasedSet,
    release_together,
    release_wholes,
    weigh,
)
from ksana.service.queue.waiting import WaitingClaim, pick_short

SETS_AT_ONCE: Final = 2
"""Sets of releases under way at the same time; what comes meanwhile is the next one."""

Answer = TypeVar("Answer", Released, LeasedJob)

ReleaseSets = Callable[[QueueTx, Sequence[Sequence[Release]]], list[ReleasedSet[Answer]]]
ServeClaims = Callable[[QueueTx, Sequence[Claim]], Sequence[Claimed]]
ExpectClaims = Callable[[QueueTx, Sequence[Claim]], None]


class ReleaseEntry(NamedTuple):
    """Leases to be ended, claims of others that wait for units, and a claim of the caller's own."""

    items: Sequence[Release]
    waiting: Sequence[WaitingClaim] = ()
    own: Claim | None = None
    is_gone: Callable[[], bool] = bool
    """Whether the caller has left: then nothing is claimed for it."""

    @property
    def weight(self) -> int:
        """How much of a set it takes up: what it releases, and what it may claim."""
        weight = weigh(self.items)
        if self.waiting:
            weight += sum([one.claim.limit for one in self.waiting])
        return weight if self.own is None else weight + self.own.limit

    def list_likely(self) -> list[Claim]:
        """The claims that are served if nothing comes between."""
        likely = [one.claim for one in self.waiting if one.is_here]
        return likely if self.own is None or self.is_gone() else [*likely, self.own]

    def list_claims(self, answers: Sequence[object]) -> list[Claim | None]:
        """The claims, in order; None for one that is not to be served: its caller has left, or has
        lost every lease that it wanted to release."""
        claims = [one.claim if one.is_here else None for one in self.waiting]
        if self.own is not None:
            is_lost = all(isinstance(answer, KsanaError) for answer in answers)
            claims.append(None if is_lost or self.is_gone() else self.own)
        return claims


class Exchanged(NamedTuple, Generic[Answer]):
    """What became of them, in their order."""

    released: ReleasedSet[Answer]
    claimed: Sequence[Claimed] = ()

    @property
    def own(self) -> Claimed:
        """What the caller got that claimed with its release."""
        return self.claimed[-1]

    @property
    def granted(self) -> int:
        """Units that were leased."""
        leased = [job for one in self.claimed if one.has_leases for job in one.taken]
        return sum([job.cost_units for job in leased])


def release_and_claim(
    tx: QueueTx,
    entries: Sequence[ReleaseEntry],
    release: ReleaseSets[Answer],
    serve: ServeClaims,
    expect: ExpectClaims | None = None,
) -> list[Exchanged[Answer]]:
    """End the leases of a set, then serve its claims. `expect` is told before which these will be,
    unless something comes between."""
    if not any(entry.waiting or entry.own is not None for entry in entries):
        return [Exchanged(one) for one in release(tx, [entry.items for entry in entries])]
    if expect is not None:
        likely = [claim for entry in entries for claim in entry.list_likely()]
        if likely:
            expect(tx, likely)
    released = release(tx, [entry.items for entry in entries])
    claims = [entry.list_claims(one.answers) for entry, one in zip(entries, released, strict=True)]
    wanted = [claim for of_entry in claims for claim in of_entry if claim is not None]
    served = iter(serve(tx, wanted) if wanted else ())
    return [
        Exchanged(one, _hand_out(of_entry, served))
        for one, of_entry in zip(released, claims, strict=True)
    ]


def _hand_out(claims: Sequence[Claim | None], served: Iterator[Claimed]) -> list[Claimed]:
    return [NOTHING if claim is None else next(served) for claim in claims]


def expect_claims(
    tx: QueueTx, claims: Sequence[Claim], cache: JobClassCache, limits: Limits
) -> None:
    """Say of claims that are served once leases were ended what they will ask, if they all want the
    same: what it costs to look for units that are set aside is asked for with the leases."""
    first = claims[0]
    if limits.shares or not tx.capacity.is_shared:
        return
    if not all(one.has_lease and one.wants == first.wants for one in claims):
        return
    expected = cache.expect(first.wants, must_have_found=False)
    if expected is None:
        return
    is_any = len(expected) == len(cache.known.classes)
    if is_any or len(expected) == 1:
        limit = sum([claim.limit for claim in claims])
        tx.leases.expect_claim(None if is_any else expected[0], limit)


class ReleaseBatches:
    """Takes releases, with or without a claim, and writes those that wait together in one commit.
    `serve` serves claims in a transaction, `expect` is told of them before; `notify` is called with
    what is durable."""

    def __init__(
        self,
        store: Store,
        poll: ClaimPoll,
        serve: ServeClaims,
        expect: ExpectClaims,
        notify: Callable[[Sequence[Exchanged[Any]]], None],
    ) -> None:
        self._poll = poll
        self._notify = notify
        self._compact: Batcher[ReleaseEntry, Exchanged[Released]] = Batcher(
            store,
            partial(release_and_claim, release=release_together, serve=serve, expect=expect),
            self._released,
            SETS_AT_ONCE,
            refused=_let_go,
        )
        self._whole: Batcher[ReleaseEntry, Exchanged[LeasedJob]] = Batcher(
            store,
            partial(release_and_claim, release=release_wholes, serve=serve, expect=expect),
            self._released,
            SETS_AT_ONCE,
            refused=_let_go,
        )

    async def release_compactly(
        self,
        items: Sequence[Release],
        own: Claim | None = None,
        is_gone: Callable[[], bool] = bool,
    ) -> Exchanged[Released]:
        """End attempts, answered with what became of each."""
        entry = self._enter(items, own, is_gone)
        return await self._compact.add(entry, entry.weight)

    async def release_whole(
        self,
        items: Sequence[Release],
        own: Claim | None = None,
        is_gone: Callable[[], bool] = bool,
    ) -> Exchanged[LeasedJob]:
        """The same, answered with leases and jobs."""
        entry = self._enter(items, own, is_gone)
        return await self._whole.add(entry, entry.weight)

    def _enter(
        self, items: Sequence[Release], own: Claim | None, is_gone: Callable[[], bool]
    ) -> ReleaseEntry:
        waiting: Sequence[WaitingClaim] = ()
        if self._poll.waiters:
            waiting = pick_short(self._poll, len(items), None if own is None else own.wants)
        return ReleaseEntry(items, waiting, own, is_gone)

    def _released(self, entries: Sequence[ReleaseEntry], made: Sequence[Exchanged[Any]]) -> None:
        for entry, one in zip(entries, made, strict=True):
            if entry.waiting:
                for waiting, claimed in zip(entry.waiting, one.claimed, strict=False):
                    waiting.hand(claimed)
        self._notify(made)


def _let_go(entries: Sequence[ReleaseEntry]) -> None:
    """These were not entered: the claims that were picked for them wait on."""
    for entry in entries:
        for waiting in entry.waiting:
            waiting.hand(NOTHING)
