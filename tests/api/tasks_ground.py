"""Timers and tasks behind the real app, on a virtual clock and an inline store, without the engine:
nothing fires by itself."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from ksana.api.core.routing import AnyRoute
from ksana.api.tasks import backfill, callbacks, definitions, runs, schedules, simulate, timers
from ksana.api.tasks.members import Defaults, TaskSurface
from ksana.base.clock import Clock, VirtualClock
from ksana.base.instant import HOUR, SECOND, Instant
from ksana.domain.queue.admission import Limits
from ksana.domain.tasks.records import Run
from ksana.engine.tasks.claimer import claim_ready
from ksana.ports.store import Store
from ksana.service.queue.handover import QueueHandover
from ksana.service.queue.service import QueueService
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.callbacks import CallbackService
from ksana.service.tasks.definitions import TaskService
from ksana.service.tasks.runs import RunService
from tests.api.ground import CoreServices, client_of, open_house
from tests.ground.task_rows import a_finish

URL = "http://target.test/hook"


class SilentHints:
    """Hints that nobody hears: they may be lost, so everything must hold without them."""

    def due(self, at: Instant | None) -> None:
        pass

    def made(self, tasks: object) -> None:
        pass

    def ready(self, host: str) -> None:
        pass

    def canceled(self, run_id: int) -> None:
        pass

    def paced(self) -> None:
        pass


class Ground:
    """Timers and tasks to talk to."""

    def __init__(
        self, client: httpx.AsyncClient, clock: VirtualClock, store: Store, core: CoreServices
    ) -> None:
        self.http = client
        self.clock = clock
        self.store = store
        self.core = core

    async def ask(
        self, method: str, path: str, body: Any = None, *, status: int | None = None, **headers: str
    ) -> Any:
        """Send a request; answer the JSON. `status` is what must come back."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = (
            await self.http.request(method, path, json=body, headers=sent)
            if body is not None
            else (await self.http.request(method, path, headers=sent))
        )
        assert status is None or reply.status_code == status, (reply.status_code, reply.text)
        return reply.json() if reply.content else None

    async def refused(
        self, method: str, path: str, body: Any, field: str | None, **headers: str
    ) -> dict[str, Any]:
        """A 400 that names the field."""
        answer = await self.ask(method, path, body, status=400, **headers)
        assert answer.get("field") == field, answer
        return answer  # type: ignore[no-any-return]

    async def make_timer(self, **members: Any) -> dict[str, Any]:
        body = {
            "name": "ping",
            "http": {"url": URL},
            "schedule": {"kind": "every", "every": "5m"},
            **members,
        }
        return await self.ask("POST", "/jobs", body, status=201)  # type: ignore[no-any-return]

    async def make_task(self, **members: Any) -> dict[str, Any]:
        body = {"name": "report", "target_url": URL, "cron_expr": "0 */5 * * *", **members}
        if "schedule" in members:
            del body["cron_expr"]
        return await self.ask("POST", "/api/v1/tasks", body, status=201)  # type: ignore[no-any-return]

    async def start(self, run_id: int) -> Run:
        """Take a ready run as an instance would: it is RUNNING then."""

        def claim(tx: Any) -> Run:
            claimed, _ = claim_ready(tx, "target.test", "i1", [77], 1)
            assert [one.run_id for one in claimed] == [run_id]
            run: Run = tx.runs.find(run_id)
            return run

        return await self.store.transact(claim)

    async def finish(self, run_id: int, status: str = "SUCCESS", **members: Any) -> Run:
        """Take a ready run and record the end of its attempt."""
        run = await self.start(run_id)
        waits = status == "CALLBACK_PENDING"
        members["error"] = members.pop("error_message", None)
        given = {
            "new": status,
            "end_time": None if waits else self.clock.now(),
            "response_body": "fine",
            "callback_deadline": self.clock.now() + 300 * SECOND if waits else None,
            "request_headers": None,
            **members,
        }

        def record(tx: Any) -> Run:
            change = a_finish(run_id, run.token, run.task_id, **given)
            assert tx.run_changes.finish([change]) == [True]
            found: Run = tx.runs.find(run_id)
            return found

        return await self.store.transact(record)

    async def find_run(self, run_id: int) -> Run:
        run: Run | None = await self.store.read(lambda tx: tx.runs.find(run_id))
        assert run is not None
        return run


@contextlib.asynccontextmanager
async def open_tasks(
    tmp_path: Path, *, identity_mode: bool = True, defaults: Defaults | None = None
) -> AsyncIterator[Ground]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        routes = task_routes(core, clock, identity_mode=identity_mode, defaults=defaults)
        async with client_of(core.app(*routes)) as client:
            yield Ground(client, clock, core.store, core)


def task_routes(
    core: CoreServices,
    clock: Clock,
    *,
    identity_mode: bool = True,
    defaults: Defaults | None = None,
) -> list[AnyRoute]:
    """Every route of timers and tasks."""
    hints = SilentHints()
    jobs = QueueHandover(QueueService(core.store, clock, Limits()))
    surface = TaskSurface(
        TaskService(core.store, clock, hints, SECOND),
        RunService(core.store, hints, jobs),
        CallbackService(core.store, clock, hints, HOUR, identity_mode),
        defaults or Defaults(),
        clock,
        BackfillService(core.store, hints, SECOND),
        jobs,
    )
    return [
        *(
            route
            for module in (timers, definitions, runs, callbacks, schedules, simulate)
            for route in module.routes(surface)
        ),
        *backfill.routes(surface.backfills, clock),
    ]
