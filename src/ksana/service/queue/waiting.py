"""Claims that wait for jobs, and how a new job goes to one of them in the commit that enters it.

A submit picks a claim that waits and would take the job, and both are one transaction. The claim
gets what it would have got a commit later: the first jobs in order, within the capacity. If that is
nothing it looks once more and waits on.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from ksana.base.clock import Clock
from ksana.domain.queue.jobs import NewJob
from ksana.engine.queue.claims import ClaimPoll, ClaimWaiter
from ksana.service.queue.claims import NOTHING, Claim, Claimed
from ksana.service.queue.jobs import Submitted

MOST_LOOKED_AT: Final = 64
"""Claims that a submit looks at for one that would take its job. If none of these does, the others
are woken when the job is entered, as all were."""


class WaitingClaim(ClaimWaiter):
    """A claim that tries, and waits if it gets nothing. While it waits a submit may pick it; then
    it waits for what that brings."""

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
        if self._is_picked or not self.is_idle or not self._concerns(new.job_class):
            return False
        if self._is_gone():
            return False
        self._is_picked = True
        self.begin_try()
        return True

    def hand(self, claimed: Claimed) -> None:
        """This came of it."""
        self._is_picked, self._handed = False, claimed
        self.came.set()

    async def take_handed(self) -> Claimed | None:
        """What a submit that picked the claim brought; None: none did."""
        while self._is_picked:  # its time may be over, but a job that is handed out must be taken
            self.came.clear()
            await self.came.wait()
        handed, self._handed = self._handed, None
        return handed


class SubmitEntry(NamedTuple):
    """A job to be entered, and a claim that is served in the same commit."""

    new: NewJob
    waiting: WaitingClaim | None


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
