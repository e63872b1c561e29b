"""Query strings: what is not known is refused by its name, and filters match what they say."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from ksana.api.core.routing import Route
from ksana.base.clock import VirtualClock
from tests.api.ground import client_of, open_house
from tests.api.surfaces_ground import every_route
from tests.api.tasks_ground import Ground, open_tasks

UUID = "6f1c3c2e-8f0d-4b8e-9d55-0f6b1a2c3d4e"
IDS = {
    "{id:int}": "1",
    "{job_id:uuid}": UUID,
    "{lease_id:uuid}": UUID,
    "{token}": "ab",
    "{id}": "1",
}


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


@pytest.mark.spec("X9")
async def test_an_unknown_query_member_is_named_on_every_route(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        app = core.app(*every_route(core, clock))
        async with client_of(app) as client:
            for route in app.router.routes:
                if not isinstance(route, Route) or route.hidden or "callbacks" in route.path:
                    continue
                path = route.path
                for name, value in IDS.items():
                    path = path.replace(name, value)
                for query in ("nonsense=1", "nonsense=", "nonsense"):
                    reply = await client.request(route.method, f"{path}?{query}")
                    told = reply.json()
                    assert reply.status_code == 400, (route.method, path, reply.text)
                    assert (told["code"], told["field"]) == ("INVALID_ARGUMENT", "nonsense")


@pytest.mark.spec("X9")
async def test_a_callback_may_carry_query_members_that_nobody_knows(ground: Ground) -> None:
    reply = await ground.http.get("/api/v1/callbacks/ab?status=SUCCESS&nonsense=1")
    assert reply.status_code == 404, reply.text
    reply = await ground.http.post("/api/v1/callbacks/ab?nonsense=1", json={"status": "SUCCESS"})
    assert reply.status_code == 404, reply.text


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/api/v1/tasks?status=ON", "status"),
        ("/api/v1/runs?status=DONE", "status"),
        ("/api/v1/tasks/1/runs?status=success", "status"),
        ("/api/v1/events?entity_type=TASKS", "entity_type"),
        ("/api/v1/events/stream?entity_type=job", "entity_type"),
        ("/api/scheduler/jobs?state=DONE_", "state"),
        ("/api/scheduler/stats/timeseries?metric=nonsense", "metric"),
    ],
)
@pytest.mark.spec("X9")
async def test_an_unknown_value_of_an_enumerated_member_is_refused(
    tmp_path: Path, path: str, field: str
) -> None:
    clock = VirtualClock()
    async with (
        open_house(tmp_path, clock=clock) as core,
        client_of(core.app(*every_route(core, clock))) as client,
    ):
        reply = await client.get(path)
    assert (reply.status_code, reply.json().get("field")) == (400, field), reply.text


async def names(http: httpx.AsyncClient, **query: str) -> list[str]:
    reply = await http.get("/api/v1/tasks", params=query)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert found["total"] == len(found["items"])
    return [task["name"] for task in found["items"]]


@pytest.mark.spec("C2")
async def test_filters_match_wildcards_as_themselves(ground: Ground) -> None:
    for name, tag in (("a_b", "x_y"), ("axb", "xay"), ("50%", "9%"), ("50 !", "9!"), ("c\\d", "z")):
        await ground.make_task(name=name, tags=[tag])
    assert await names(ground.http, name="a_b") == ["a_b"]
    assert await names(ground.http, name="_") == ["a_b"]
    assert await names(ground.http, name="%") == ["50%"]
    assert await names(ground.http, name="!") == ["50 !"]
    assert await names(ground.http, name="\\") == ["c\\d"]
    assert await names(ground.http, name="50") == ["50%", "50 !"]
    assert await names(ground.http, tag="x_y") == ["a_b"]
    assert await names(ground.http, tag="9%") == ["50%"]
    assert await names(ground.http, tag="%") == []
