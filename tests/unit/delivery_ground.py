"""What the loops of tasks need around them, for tests of one loop alone: a store that answers what
it is told, a lease, and calls that end when the test says so."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ksana.base.clock import VirtualClock
from ksana.base.instant import Instant
from ksana.domain.tasks.records import ClaimedRun, Task
from ksana.engine.core.pump import Pump
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.delivery import Delivery
from ksana.ports.caller import MaySend, Reply, Request, Timing, always
from ksana.ports.store import WHOLE, Share
from tests.unit.task_ground import a_claimed_run, a_task


class ScriptedStore:
    """`ports.store.Store` without rows: each function that should run in a transaction is written
    down by its name, and answered what was scripted for it, in order; the last answer again and
    again. An answer that is an exception is raised, one that is a function is asked."""

    def __init__(self, *, sole: bool = True) -> None:
        self.sole = sole
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.given: dict[str, dict[str, Any]] = {}
        """Arguments by name, of the last call of each function."""
        self._answers: dict[str, list[Any]] = defaultdict(list)

    def answer(self, name: str, *answers: Any) -> None:
        self._answers[name] = list(answers)

    def names(self) -> list[str]:
        """Which functions were asked for, in order, since the last time somebody looked."""
        found = [name for name, _ in self.asked]
        self.asked.clear()
        return found

    async def read(self, fn: Callable[..., Any], *args: Any, **members: Any) -> Any:
        name = fn.__name__
        self.asked.append((name, args))
        self.given[name] = members
        answers = self._answers[name]
        assert answers, f"nobody said what {name} answers"
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found(*args) if callable(found) else found

    transact = read


class HeldLease:
    """`InstanceLease` as a test sets it."""

    def __init__(self) -> None:
        self.held = True
        self.generation = 3
        self.share: Share = WHOLE

    def is_held(self) -> bool:
        return self.held

    def covers(self, generation: int) -> bool:
        return self.held and generation == self.generation


class ManualCall:
    """A call in flight that ends when the test says so."""

    def __init__(self, request: Request, done: Callable[[Reply], None], may_send: MaySend) -> None:
        self.request = request
        self.end = done
        self.may_send = may_send
        self.is_resolving = False
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class ManualCaller:
    """A Caller whose calls are ended one by one."""

    def __init__(self) -> None:
        self.calls: list[ManualCall] = []
        self.is_closed = False

    def call(
        self, request: Request, done: Callable[[Reply], None], may_send: MaySend = always
    ) -> ManualCall:
        self.calls.append(ManualCall(request, done, may_send))
        return self.calls[-1]

    def close(self) -> None:
        self.is_closed = True


def a_called_task(host: str = "a", **members: Any) -> Task:
    return a_task(**{"target_url": f"http://{host}/", **members})


def a_claim(
    run_id: int, host: str = "a", *, task: Task | None = None, **members: Any
) -> ClaimedRun:
    """A run of a host, claimed under the lease as it is at first."""
    given: dict[str, Any] = {"run_id": run_id, "host": host, "attempt": 1, "lease": 3}
    return a_claimed_run(task or a_called_task(host), **given | members)


def answered(status: int = 200, **members: Any) -> Reply:
    return Reply("answered", Timing(total_ms=1.0), status, **members)


async def step(pump: Pump) -> Instant | None:
    """One pass of a loop: when it wants to come back. The hints it got before are used up."""
    pump._wake.clear()
    return await pump._step()


def is_signalled(pump: Pump) -> bool:
    """Whether a loop was hinted at since its last pass."""
    return pump._wake.is_set()


class Parts:
    """Delivery with all it is connected to."""

    def __init__(self, clock: VirtualClock, *, workers: int = 2, per_host: int = 2) -> None:
        self.clock = clock
        self.store = ScriptedStore()
        self.lease = HeldLease()
        self.caller = ManualCaller()
        self.called_runs: list[int] = []
        self.recorded_runs: list[tuple[int, str]] = []
        self.delivery = Delivery(
            self.store,  # type: ignore[arg-type]
            clock,
            lambda: self.caller,
            "me",
            self.lease,
            self,
            workers=workers,
            per_host=per_host,
            callback_base="http://ksana",
            agent="ksana/9",
        )
        self.dispatcher = self.delivery.dispatcher
        self.claimer = self.delivery.claimer

    def called(self, over: AttemptOver) -> None:
        self.called_runs.append(over.held.run_id)

    def recorded(self, ended: Sequence[tuple[AttemptOver, str]]) -> None:
        self.recorded_runs += [(over.held.run_id, status) for over, status in ended]

    def take(self, *runs: ClaimedRun, watermark: int = 1_000_000) -> None:
        self.dispatcher.take(list(runs), watermark)
