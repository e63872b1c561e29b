"""What a handler of a governance job is given, what it answers and what it may raise. Only the
object is asked for at the server."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ksana.client.context import AttemptContext, CancelSignal, Retry
from ksana.client.governance_client import GovernanceClient, When
from ksana.client.governance_shapes import GovernanceJob, GovernedObject

READ_SEC = 30.0
"""How long a handler in a thread waits for its object."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a job: returned by a handler that has more to say than that it is done. All of
    it is written in one transaction with the end of the job."""

    next_action_at: When | UnsetType | None = UNSET
    """When the object falls due next: a time, how long from now, or None for never. Not named:
    nothing new."""
    next_action: str | None = None
    """What is done then; the same action again if not named."""
    changes: Mapping[str, Any] | None = None
    """Members of the object that change, such as `{"status": "verified"}`."""
    evidence_refs: Sequence[Any] | None = None
    audit_event_id: str | None = None


class RetryAfter(Retry):
    """Raised by a handler: this attempt failed; the next one comes so many seconds later, while
    attempts are left."""

    def __init__(self, delay_sec: float, *args: object) -> None:
        super().__init__(*args)
        if not 0 <= delay_sec <= 31_536_000:
            raise ValueError(f"a delay lies between 0 and a year, not {delay_sec:g} s")
        self.delay_sec = delay_sec


class GovernanceContext(AttemptContext):
    """One attempt at one governance job, as its handler sees it. `cancelled` is set when the lease
    is lost or the worker stops."""

    __slots__ = ("_client", "_loop", "job", "worker_id")

    def __init__(
        self, job: GovernanceJob, worker_id: str, cancelled: CancelSignal, client: GovernanceClient
    ) -> None:
        super().__init__(cancelled)
        self.job = job
        self.worker_id = worker_id
        self._client = client
        self._loop = asyncio.get_running_loop()

    @property
    def object_type(self) -> str:
        """Of the object to look after."""
        return self.job.object_type

    @property
    def object_id(self) -> str:
        """Of the object to look after."""
        return self.job.object_id

    @property
    def action(self) -> str:
        """What to do."""
        return self.job.action

    @property
    def gates(self) -> dict[str, str]:
        """The gates' states where one is degraded, else nothing."""
        return self.job.gates or {}

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt + 1

    @property
    def is_last_attempt(self) -> bool:
        """Tell whether a failure now makes a dead letter."""
        return self.attempt >= self.job.max_attempts

    async def find_object(self) -> GovernedObject | None:
        """The object as it is now; None if nobody registered it. For async handlers."""
        return await self._client.find_object(self.job.object_type, self.job.object_id)

    def find_object_in_thread(self) -> GovernedObject | None:
        """The same for handlers that run in a thread."""
        asked = asyncio.run_coroutine_threadsafe(self.find_object(), self._loop)
        return asked.result(READ_SEC)
