"""The pull worker: claims jobs with their leases, runs handlers, keeps the leases, sends the
results.

    server ──▶ Claims (long poll, as many as slots are free) ──▶ JobRunner ──▶ Releases ──▶ server
                                                                  │  ▲
                                        held jobs, to be beaten for  lost, cancel
                                                                  ▼  │
                                                     Heartbeats (a thread of its own) ──▶ server

What it promises: a handler's result is sent until the server accepts or refuses it, so none is lost
to an outage; a job whose lease is over is dropped and its result not sent, so none is recorded
twice; a claim whose answer was lost is looked for afterwards, so no job waits for its lease to run
out because of a cut connection.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

from ksana.base.clock import Clock
from ksana.client import pace
from ksana.client.claims import Claims
from ksana.client.handlers import Handler, Registered
from ksana.client.heartbeats import Heartbeats
from ksana.client.job_runner import JobRunner
from ksana.client.leased_job import LeasedJob
from ksana.client.pull_worker import PullWorker
from ksana.client.queue import QueueClient
from ksana.client.shapes import Job
from ksana.client.transport import CallBackoff

F = TypeVar("F", bound=Callable[..., Any])


class Worker(PullWorker[QueueClient]):
    """Runs the jobs of one addon. Register handlers with `job`, then `await run()`, or `serve()`
    from a script."""

    def __init__(
        self,
        client: QueueClient | str,
        addon_id: str,
        worker_id: str | None = None,
        *,
        concurrency: int = 10,
        ahead: int = pace.MOST,
        ttl_sec: int = 15,
        wait_sec: float | None = None,
        capabilities: Mapping[str, bool] | None = None,
        max_cost_units: int | None = None,
        grace_sec: float = 30.0,
        api_key: str | None = None,
        on_lost: Callable[[Job, str], None] | None = None,
        backoff: CallBackoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`worker_id` must be this process's alone. `ahead` is how many jobs it takes at most
        before it has a slot for them, while many short ones wait; 0: none. `ttl_sec` is the lease's
        time: after a crash a job comes back that late. `grace_sec` is what a stop leaves to running
        handlers. `on_lost` is called with each job whose result is dropped."""
        super().__init__(
            addon_id,
            client,
            QueueClient,
            api_key,
            worker_id,
            concurrency=concurrency,
            lease_sec=ttl_sec,
            wait_sec=wait_sec,
            grace_sec=grace_sec,
            backoff=backoff,
            clock=clock,
        )
        if ahead < 0:
            raise ValueError("ahead is 0 or more")
        self.addon_id = addon_id
        self.ahead = ahead
        self.ttl_sec = ttl_sec
        self.capabilities = dict(capabilities or {})
        self.max_cost_units = max_cost_units
        self.handlers: dict[str, Registered] = {}
        self.jobs: JobRunner = JobRunner(
            self.client,
            self.worker_id,
            self.handlers,
            self.stats,
            self.clock,
            concurrency=concurrency,
            ttl_us=self.ttl_us,
            backoff=self._backoff,
            on_lost=on_lost,
        )

    # --- handlers ---

    def job(
        self,
        job_type: str,
        *,
        payload_type: Any = None,
        interrupt: bool = False,
        deadline_sec: float | None = None,
    ) -> Callable[[F], F]:
        """Register a handler for a job type: `async def` runs on the event loop, `def` in a thread.

        `payload_type`: the payload is converted to it, and a payload that does not fit fails the
        job. `interrupt`: when the job is cancelled, the async handler gets CancelledError; else
        only `ctx.cancelled` is set. `deadline_sec`: an async handler that runs longer is ended, and
        so is the job, as TIMEOUT.
        """

        def register(handler: F) -> F:
            self.add_job(
                job_type,
                handler,
                payload_type=payload_type,
                interrupt=interrupt,
                deadline_sec=deadline_sec,
            )
            return handler

        return register

    def add_job(
        self,
        job_type: str,
        handler: Handler,
        *,
        payload_type: Any = None,
        interrupt: bool = False,
        deadline_sec: float | None = None,
    ) -> None:
        """Register a handler without the decorator."""
        if job_type in self.handlers:
            raise ValueError(f"{job_type!r} has a handler already")
        self.handlers[job_type] = Registered(
            job_type, handler, payload_type, interrupt, deadline_sec
        )

    # --- life ---

    @property
    def held(self) -> dict[str, LeasedJob]:
        """The jobs whose results the server has not answered for, by lease id."""
        return self.jobs.held

    def _check_ready(self) -> None:
        if not self.handlers:
            raise ValueError("the worker has no handler: register one with @worker.job(…)")

    def _describe(self) -> str:
        types = ", ".join(sorted(self.handlers))
        return f"addon {self.addon_id}, concurrency {self.concurrency}, job types {types}"

    def _start_renewals(self, executor: Executor) -> Heartbeats:
        heartbeats = Heartbeats(
            self.client,
            self.addon_id,
            self.worker_id,
            self.jobs.held,
            self.ttl_us,
            self.clock,
            on_lost=self.jobs.on_lost_in_thread,
            on_cancel=self.jobs.on_cancel_in_thread,
        )
        self.jobs.start(executor, heartbeats)
        return heartbeats

    async def _take_until_stopped(self, *, burst: bool) -> None:
        await Claims(self, self._backoff).claim_until_stopped(burst=burst)
