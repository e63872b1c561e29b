"""The app over a real SQLite store, with a few routes that show everything the layer offers."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import msgspec
from prometheus_client import CollectorRegistry

from ksana.api.core.app import Application, create_app
from ksana.api.core.health import StatsSections
from ksana.api.core.routing import Answer, AnyRoute, Call, Route
from ksana.api.core.services import ApiSettings, Check
from ksana.base.clock import Clock, SystemClock
from ksana.base.errors import ConflictError, StoreDownError
from ksana.ports.store import Store
from ksana.service.core.events import EventLog
from ksana.service.core.keys import KeyRing
from ksana.store.sql import open_store


class Cron(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="cron"):
    expr: str


class Every(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="every"):
    every: int


class MakeThing(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
    mode: Literal["fast", "slow"] = "fast"
    schedule: Cron | Every | None = None
    headers: dict[str, str] = {}
    steps: list[int] = []
    # A factory: a default of type Raw cannot be shown in a schema.
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class Thing(msgspec.Struct):
    id: int
    name: str


class ListThings(msgspec.Struct):
    page: Annotated[int, msgspec.Meta(ge=1)] = 1
    tag: list[str] = []
    status: Literal["on", "off"] | None = None


class Pause(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = "none given"


def thing_routes() -> list[AnyRoute]:
    async def make_thing(call: Call, body: MakeThing) -> Answer:
        return Answer(
            201,
            {"id": 1, "name": body.name, "payload": body.payload},
            ((b"location", b"/api/v1/things/1"),),
        )

    async def list_things(call: Call) -> dict[str, Any]:
        query: ListThings = call.query
        return {"page": query.page, "tag": query.tag, "status": query.status}

    async def get_thing(call: Call) -> dict[str, Any]:
        trace = call.trace
        return {
            "id": call.params["id"],
            "trace": str(trace) if trace else None,
            "key": call.header("X-Colour"),
        }

    async def pause_thing(call: Call, body: Pause) -> dict[str, str]:
        return {"reason": body.reason}

    async def delete_thing(call: Call) -> Answer:
        return Answer(204)

    async def conflict(call: Call) -> None:
        raise ConflictError(
            "the thing is paused", current={"state": "PAUSED"}, code="ILLEGAL_TRANSITION"
        )

    async def down(call: Call) -> None:
        raise StoreDownError("the store cannot be reached", retry_after_sec=3)

    async def broken(call: Call) -> None:
        raise RuntimeError("a secret that must not be seen")

    base = "/api/v1/things"
    ignored = frozenset({"created_at", "id"})
    return [
        Route(
            "POST",
            base,
            make_thing,
            scope="queue:write",
            summary="Make",
            body=MakeThing,
            answers={201: Thing},
            ignored_members=ignored,
        ),
        Route("GET", base, list_things, scope="queue:read", summary="List", query=ListThings),
        Route(
            "GET",
            base + "/{id:int}",
            get_thing,
            scope="queue:read",
            summary="Get",
            answers={200: Thing},
        ),
        Route(
            "DELETE",
            base + "/{id:int}",
            delete_thing,
            scope="queue:admin",
            summary="Delete",
            answers={204: None},
        ),
        Route(
            "POST",
            base + "/{id:int}/pause",
            pause_thing,
            scope="queue:write",
            summary="Pause",
            body=Pause,
            empty_body_ok=True,
        ),
        Route(
            "GET", base + "/special", conflict, scope=None, summary="A literal beside a parameter"
        ),
        Route("GET", "/api/v1/jobs/{job_id:uuid}", get_job, scope=None, summary="By UUID"),
        Route("GET", "/api/v1/named/{name}", get_named, scope=None, summary="By name"),
        Route("GET", "/api/v1/down", down, scope=None, summary="Down"),
        Route("GET", "/api/v1/broken", broken, scope=None, summary="Broken"),
    ]


async def get_job(call: Call) -> dict[str, str]:
    return {"id": call.params["job_id"]}


async def get_named(call: Call) -> dict[str, str]:
    return {"name": call.params["name"]}


class CoreServices:
    """Everything the app is built of."""

    def __init__(self, store: Store, clock: Clock, settings: ApiSettings) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.checks: list[Check] = [
            Check("store", True),
            Check("loops", True),
            Check("coordination", True),
        ]
        self.metrics = CollectorRegistry()
        self.keys = KeyRing(store, clock)
        self.events = EventLog(store, clock)
        self.stats = StatsSections()

    @property
    def readiness(self) -> Callable[[], list[Check]]:
        return lambda: self.checks

    def is_open(self) -> bool:
        return True

    def app(self, *routes: AnyRoute) -> Application:
        return create_app(self, routes or thing_routes(), stats=self.stats)


@contextlib.asynccontextmanager
async def open_house(
    tmp_path: Path, settings: ApiSettings | None = None, clock: Clock | None = None
) -> AsyncIterator[CoreServices]:
    clock = clock or SystemClock()
    store = await open_store(
        f"sqlite:///{tmp_path}/ksana.db", clock, inline=not isinstance(clock, SystemClock)
    )
    core = CoreServices(
        store, clock, settings or ApiSettings(version="1.2.3", tzdata_version="2026a")
    )
    try:
        yield core
    finally:
        await core.events.close()
        await core.keys.close()
        await store.close()


def client_of(app: Application, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:7100", **options)


def append_events(tx: Any, *names: str) -> None:
    for name in names:
        tx.events.append("JOB", name, "JOB_CREATED", {"name": name})
