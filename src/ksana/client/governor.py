"""The pull worker of Governance: takes due jobs, runs the handlers of their actions, keeps the
leases, sends what came of them.

    server ──▶ pull (long poll, as many as slots are free) ──▶ GovernanceRunner ──▶ server
                                                                  │  ▲      acks and failures, in
                                                jobs to be kept   │  │ lost           batches
                                                                  ▼  │
                                              GovernanceRenewals (a thread of its own) ──▶ server

What it promises: what a handler answered is sent until the server accepts or refuses it; a job
whose lease is over is dropped and nothing is sent for it. Jobs of a pull whose answer was lost come
back when their leases are over: the server shows a token once.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from ksana.base.clock import Clock
from ksana.base.instant import SECOND
from ksana.client.errors import ClientError
from ksana.client.governance_client import MAX_PULL, GovernanceClient
from ksana.client.governance_runner import (
    GovernanceHandler,
    GovernanceRenewals,
    GovernanceRunner,
    HeldGovernanceJob,
)
from ksana.client.governance_shapes import ACTIONS, OBJECT_TYPES, GovernanceJob
from ksana.client.pull_worker import PullWorker
from ksana.client.recovery import EARLY_EMPTY, Recovery
from ksana.client.transport import CallBackoff
from ksana.client.wire import is_outcome_unknown

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("ksana.client")


class Governor(PullWorker[GovernanceClient]):
    """Looks after objects. Register handlers with `action`, then `await run()`, or `serve()` from a
    script."""

    def __init__(
        self,
        client: GovernanceClient | str,
        worker_id: str | None = None,
        *,
        concurrency: int = 10,
        lease_sec: int = 120,
        wait_sec: float | None = None,
        object_types: Sequence[str] | None = None,
        order: str | None = None,
        retry_delay_sec: float = 300.0,
        grace_sec: float = 30.0,
        api_key: str | None = None,
        on_lost: Callable[[GovernanceJob, str], None] | None = None,
        backoff: CallBackoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`worker_id` must be this process's alone. `lease_sec` is the lease's time: after a crash
        a job comes back that late. `object_types` are those it looks after; all if not given.
        `retry_delay_sec` is when a failed attempt is made again. `grace_sec` is what a stop leaves
        to running handlers. `on_lost` is called with each job whose result is dropped."""
        _check_among("object_types", object_types or (), OBJECT_TYPES)
        super().__init__(
            "governor",
            client,
            GovernanceClient,
            api_key,
            worker_id,
            concurrency=concurrency,
            lease_sec=lease_sec,
            wait_sec=wait_sec,
            grace_sec=grace_sec,
            backoff=backoff,
            clock=clock,
        )
        self.lease_sec = lease_sec
        self.object_types = None if object_types is None else list(object_types)
        self.order = order
        self.handlers: dict[str, GovernanceHandler] = {}
        self._early_empties = 0
        self.jobs: GovernanceRunner = GovernanceRunner(
            self.client,
            self.worker_id,
            self.handlers,
            self.stats,
            self.clock,
            concurrency=concurrency,
            ttl_us=self.ttl_us,
            backoff=self._backoff,
            retry_delay_sec=retry_delay_sec,
            on_lost=on_lost,
        )

    # --- handlers ---

    def action(self, action: str, *, deadline_sec: float | None = None) -> Callable[[F], F]:
        """Register the handler of an action: `async def` runs on the event loop, `def` in a thread.
        `deadline_sec`: an async handler that runs longer is ended, and the attempt has failed."""

        def register(handler: F) -> F:
            self.add_action(action, handler, deadline_sec=deadline_sec)
            return handler

        return register

    def add_action(
        self, action: str, handler: Callable[..., Any], *, deadline_sec: float | None = None
    ) -> None:
        """Register a handler without the decorator."""
        _check_among("the action", [action], ACTIONS)
        if action in self.handlers:
            raise ValueError(f"{action!r} has a handler already")
        self.handlers[action] = GovernanceHandler(action, handler, deadline_sec)

    # --- life ---

    @property
    def held(self) -> dict[str, HeldGovernanceJob]:
        """The jobs that the server has not answered for, by their id."""
        return self.jobs.held

    def _check_ready(self) -> None:
        if not self.handlers:
            raise ValueError("the governor has no handler: register one with @governor.action(…)")

    def _describe(self) -> str:
        actions = ", ".join(sorted(self.handlers))
        types = ", ".join(self.object_types or OBJECT_TYPES)
        return f"concurrency {self.concurrency}, {actions} of {types}"

    def _start_renewals(self, executor: Executor) -> GovernanceRenewals:
        self.jobs.start(executor)
        return GovernanceRenewals(
            self.client,
            self.worker_id,
            self.jobs.held,
            self.ttl_us,
            self.clock,
            self.jobs.on_lost_in_thread,
        )

    async def _take_until_stopped(self, *, burst: bool) -> None:
        recovery = Recovery(self, self.client.base_url, self._backoff)
        while not self.is_stopping:
            limit = min(self.jobs.count_free_slots(), MAX_PULL)
            if limit <= 0:
                self.jobs.has_room.clear()
                await self.jobs.has_room.wait()
                continue
            try:
                found = await self._pull(limit, 0.0 if burst else self.wait_sec, recovery)
            except ClientError as error:
                if is_outcome_unknown(error) and not recovery.is_lost:
                    log.warning(
                        "worker %s: the answer to a pull was lost; what it handed out comes back"
                        " within %d s",
                        self.worker_id,
                        self.lease_sec,
                    )
                await recovery.wait_after(error)
                continue
            recovery.on_answer()
            if burst and not found:
                if not self.jobs.held:
                    return
                await recovery.pause(EARLY_EMPTY.pause(1))

    async def _pull(self, limit: int, wait_sec: float, recovery: Recovery) -> int:
        sent_at = self.clock.monotonic()
        jobs = await self.client.pull(
            self.worker_id,
            limit=limit,
            lease_sec=self.lease_sec,
            wait_sec=wait_sec,
            actions=sorted(self.handlers),
            object_types=self.object_types,
            order=self.order,
            tries=1,
        )
        for job in jobs:
            self.jobs.begin(job, sent_at)
        took_us = self.clock.monotonic() - sent_at
        if jobs or took_us >= wait_sec * SECOND / 2:
            self._early_empties = 0
        else:
            self._early_empties += 1
            await recovery.pause(EARLY_EMPTY.pause(self._early_empties))
        return len(jobs)


def _check_among(named: str, given: Sequence[str], known: Sequence[str]) -> None:
    for one in given:
        if one not in known:
            raise ValueError(f"{named}: {one!r} is not one; allowed: {', '.join(known)}")
