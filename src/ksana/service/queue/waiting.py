"""Claims that wait, and how they are served in the commit that brings what they wait for.

A submit picks a claim that waits and would take the job, a release picks claims that wait for
units, and both are one transaction. The claim gets what it would have got a commit later: the first
jobs in order, within the capacity. If that is nothing it looks once more and waits on.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ksana.base.clock import Clock
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import NewJob
from ksana.engine.queue.claims import ClaimPoll, ClaimWaiter
from ksana.service.core.batching import MAX_WEIGHT
from ksana.service.queue.claims import NOTHING, Claim, Claimed
from ksana.service.queue.jobs import Submitted

MOST_LOOKED_AT: Final = 64
"""Claims that a submit or a release looks at. The others are woken when it is committed, as all
were."""


class WaitingClaim(ClaimWaiter):
    """A claim that tries, and waits if it gets nothing. While it waits a submit or a release may
    pick it; then it waits for what that brings."""

    __slots__ = ("_handed", "_is_gone", "_is_picked", "claim", "is_here")

    def __init__(
        self, poll: ClaimPoll, claim: Claim, clock: Clock, is_gone: Callable[[], bool]
    ) -> None:
        super().__init__(poll, claim.wants, clock)
        self.claim = claim
        self._is_gone = is_gone
        self.is_here = True
        """Whether its caller still waits for the answer."""
        self._is_picked = False
        self._handed: Claimed | None = None

    def __exit__(self, *error: object) -> None:
        self.is_here = False
        super().__exit__(*error)

    def pick(self, new: NewJob) -> bool:
        """Take part in the commit that enters a job; False: it would not take the job, or does not
        wait."""
        return self.is_idle and self._concerns(new.job_class) and self._pick()

    def pick_short(self) -> bool:
        """Take part in the commit that ends leases; False: it does not wait for units."""
        return self.is_short and self._pick()

    def _pick(self) -> bool:
        if self._is_picked or self._is_gone():
            return False
        self._is_picked = True
        self.begin_try()
        return True

    def hand(self, claimed: Claimed) -> None:
        """This came of it."""
        self._is_picked, self._handed = False, claimed
        self.came.set()

    async def take_handed(self) -> Claimed | None:
        """What a commit that picked the claim brought; None: none did."""
        while self._is_picked:  # its time may be over, but a job that is handed out must be taken
            self.came.clear()
            await self.came.wait()
        handed, self._handed = self._handed, None
        return handed


class SubmitEntry(NamedTuple):
    """A job to be entered, and a claim that is served in the same commit."""

    new: NewJob
    waiting: WaitingClaim | None

    @property
    def claim(self) -> Claim | None:
        """The claim, unless its caller has left."""
        waiting = self.waiting
        return waiting.claim if waiting is not None and waiting.is_here else None


class SubmitResult(NamedTuple):
    """What became of both."""

    submitted: Submitted
    claimed: Claimed = NOTHING


def pick_waiting(poll: ClaimPoll, new: NewJob) -> WaitingClaim | None:
    """A claim that waits and would take the job."""
    if new.run_at is not None:
        return None
    for waiter in islice(poll.waiters, MOST_LOOKED_AT):
        if isinstance(waiter, WaitingClaim) and waiter.pick(new):
            return waiter
    return None


def pick_short(poll: ClaimPoll, count: int, besides: Wants | None) -> list[WaitingClaim]:
    """Up to so many claims that wait for units, in the order in which they came, and no more than
    a set has room for. A caller that goes on with a claim of its own comes before those who want
    the same, and after all others."""
    picked: list[WaitingClaim] = []
    room = MAX_WEIGHT // 2
    for waiter in islice(poll.waiters, MOST_LOOKED_AT):
        if len(picked) == count:
            break
        if not isinstance(waiter, WaitingClaim) or waiter.claim.wants == besides:
            continue
        if waiter.claim.limit <= room and waiter.pick_short():
            room -= waiter.claim.limit
            picked.append(waiter)
    return picked


def let_go(entries: Sequence[SubmitEntry]) -> None:
    """These were not entered: the claims that were picked for them wait on."""
    for entry in entries:
        if entry.waiting is not None:
            entry.waiting.hand(NOTHING)
