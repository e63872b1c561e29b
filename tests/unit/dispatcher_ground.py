"""A dispatcher alone, with a caller whose calls end when the test says so."""

from typing import Any

from ksana.base.clock import VirtualClock
from ksana.domain.tasks.records import ClaimedRun
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.dispatcher import Dispatcher
from ksana.ports.caller import Reply
from tests.unit.delivery_ground import (
    HeldLease,
    ManualCall,
    ManualCaller,
    ScriptedStore,
    a_called_task,
    a_claim,
    answered,
)

ALL = 1_000_000
"""A watermark above every run."""


class Ground:
    """A dispatcher and all it is told."""

    def __init__(self, clock: VirtualClock, workers: int = 2, per_host: int = 2) -> None:
        self.clock = clock
        self.store = ScriptedStore()
        self.lease = HeldLease()
        self.caller = ManualCaller()
        self.overs: list[AttemptOver] = []
        self.told: list[str] = []
        self.dispatcher = Dispatcher(
            self.store,  # type: ignore[arg-type]
            clock,
            lambda: self.caller,
            self.lease,
            self.overs.append,
            workers=workers,
            per_host=per_host,
            callback_base="http://ksana",
            agent="ksana/9",
        )
        self.dispatcher.on_blocked = lambda: self.told.append("blocked")
        self.dispatcher.on_first_call = lambda: self.told.append("first call")

    def take(self, *runs: ClaimedRun, watermark: int = ALL) -> None:
        self.dispatcher.take(list(runs), watermark)

    def sent(self) -> list[int]:
        """The runs that were sent, in order."""
        return [int(dict(call.request.headers)["X-Run"]) for call in self.caller.calls]

    def call_of(self, run_id: int) -> ManualCall:
        return self.caller.calls[self.sent().index(run_id)]

    def end(self, run_id: int, reply: Reply | None = None) -> None:
        self.call_of(run_id).end(reply or answered())

    async def pass_time(self, us: int) -> None:
        await self.clock.advance(us)


TASKS = {host: a_called_task(host, headers={"X-Run": "{{run_id}}"}) for host in "abcd"}


def run(run_id: int, host: str = "a", **members: Any) -> ClaimedRun:
    return a_claim(run_id, host, task=members.pop("task", TASKS[host]), **members)
