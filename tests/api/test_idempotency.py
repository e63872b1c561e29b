"""Idempotent writes: one set of rules on every surface, per caller."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError
from ksana.base.instant import HOUR
from ksana.service.core.idempotency import identify, once_only
from tests.api.ground import client_of, open_house
from tests.api.surfaces_ground import every_route
from tests.api.tasks_ground import URL, Ground

pytestmark = pytest.mark.spec("X21")

TASK = {"name": "report", "target_url": URL, "cron_expr": "0 */5 * * *"}
TIMER = {"name": "ping", "http": {"url": URL}, "schedule": {"kind": "every", "every": "5m"}}
JOB = {"addon_id": "a", "job_type": "t", "cost_units": 1}


class Write(NamedTuple):
    """A write that takes a key, another request that is not the same, and what tells two apart."""

    path: str
    body: Any
    other_path: str
    other_body: Any
    id_of: Callable[[Any], Any]


WRITES = [
    pytest.param(
        Write("/api/v1/tasks", TASK, "/api/v1/tasks", {**TASK, "name": "x"}, lambda a: a["id"]),
        id="create a task",
    ),
    pytest.param(
        Write(
            "/api/v1/tasks/1/trigger",
            None,
            "/api/v1/tasks/1/trigger",
            {"override_body": "x"},
            lambda a: a["run_id"],
        ),
        id="trigger",
    ),
    pytest.param(
        Write("/jobs", TIMER, "/jobs", {**TIMER, "name": "x"}, lambda a: a["id"]),
        id="create a timer",
    ),
    pytest.param(
        Write("/jobs/one/run-now", None, "/jobs/two/run-now", None, lambda a: a["run_id"]),
        id="run now",
    ),
    pytest.param(
        Write(
            "/api/scheduler/jobs/submit",
            JOB,
            "/api/scheduler/jobs/submit",
            {**JOB, "cost_units": 2},
            lambda a: a["job"]["job_id"],
        ),
        id="submit a job",
    ),
]


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        app = core.app(*every_route(core, clock))
        async with client_of(app) as client:
            ground = Ground(client, clock, core.store, core)
            await ground.make_task(name="first", concurrency_policy="PARALLEL")
            for name in ("one", "two"):
                await ground.make_timer(id=name)
            yield ground


async def send(
    ground: Ground, path: str, body: Any, key: str = "k", api_key: str | None = None
) -> httpx.Response:
    headers = {"Idempotency-Key": key}
    if api_key is not None:
        headers["X-API-Key"] = api_key
    return await ground.http.post(path, json=body, headers=headers)


@pytest.mark.parametrize("write", WRITES)
async def test_a_repeat_gets_the_first_answer_and_says_so(ground: Ground, write: Write) -> None:
    first = await send(ground, write.path, write.body)
    assert first.is_success, first.text
    assert "idempotency-replayed" not in first.headers
    for _ in range(2):
        again = await send(ground, write.path, write.body)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("write", WRITES)
async def test_a_day_later_the_key_is_free(ground: Ground, write: Write) -> None:
    first = await send(ground, write.path, write.body)
    await ground.clock.advance(24 * HOUR + 1)
    if write.body is TASK:  # its name is taken
        await ground.ask("DELETE", f"/api/v1/tasks/{first.json()['id']}", status=200)
    later = await send(ground, write.path, write.body)
    assert later.status_code == first.status_code, later.text
    assert "idempotency-replayed" not in later.headers
    assert write.id_of(later.json()) != write.id_of(first.json())


@pytest.mark.parametrize("write", WRITES)
async def test_the_key_with_another_request_is_a_mismatch_that_names_the_first(
    ground: Ground, write: Write
) -> None:
    await send(ground, write.path, write.body)
    other = await send(ground, write.other_path, write.other_body)
    told = other.json()
    assert (other.status_code, told["code"]) == (409, "IDEMPOTENCY_MISMATCH")
    assert len(told["current"]["request_digest"]) == 16
    assert told["current"]["request_digest"] != told["request_digest"]
    # The digests tell requests apart: the refused one is the first under a key of its own.
    await send(ground, write.other_path, write.other_body, key="k2")
    back = (await send(ground, write.path, write.body, key="k2")).json()
    assert back["current"]["request_digest"] == told["request_digest"]
    assert back["request_digest"] == told["current"]["request_digest"]


@pytest.mark.parametrize("write", WRITES)
async def test_two_callers_do_not_share_answers(ground: Ground, write: Write) -> None:
    anonymous = await send(ground, write.path, write.body)
    keys = [
        (await ground.core.keys.create_key(name, ["tasks:write", "queue:write"])).text
        for name in ("one", "two")
    ]
    seen = {write.id_of(anonymous.json())}
    for at, api_key in enumerate(keys):
        # The name of a task is free of the caller: each makes one of its own.
        body = {**TASK, "name": f"by {at}"} if write.body is TASK else write.body
        mine = await send(ground, write.path, body, api_key=api_key)
        assert mine.is_success, mine.text
        assert "idempotency-replayed" not in mine.headers
        seen.add(write.id_of(mine.json()))
        again = await send(ground, write.path, body, api_key=api_key)
        assert again.content == mine.content
        assert again.headers["idempotency-replayed"] == "true"
    assert len(seen) == 3


async def test_surfaces_do_not_share_keys(ground: Ground) -> None:
    for write in WRITES:
        reply = await send(ground, write.values[0].path, write.values[0].body)  # type: ignore[union-attr]
        assert reply.is_success
        assert "idempotency-replayed" not in reply.headers


async def test_a_refused_write_leaves_its_key_free(ground: Ground) -> None:
    made = await ground.make_task()
    assert (await send(ground, "/api/v1/tasks", TASK)).status_code == 409
    await ground.ask("DELETE", f"/api/v1/tasks/{made['id']}", status=200)
    assert (await send(ground, "/api/v1/tasks", TASK)).status_code == 201


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("key", ["", "x" * 256, "naïve"], ids=["empty", "long", "not ASCII"])
async def test_a_key_that_cannot_be_one_is_refused(ground: Ground, write: Write, key: str) -> None:
    reply = await ground.http.post(
        write.path, json=write.body, headers=[(b"Idempotency-Key", key.encode("latin-1"))]
    )
    assert (reply.status_code, reply.json()["field"]) == (400, "Idempotency-Key")


async def test_the_first_answer_is_kept_though_the_thing_is_gone(ground: Ground) -> None:
    first = await send(ground, "/api/v1/tasks/1/trigger", {"override_body": "x"})
    await ground.ask("DELETE", "/api/v1/tasks/1", status=200)
    again = await send(ground, "/api/v1/tasks/1/trigger", {"override_body": "x"})
    assert (again.status_code, again.content) == (202, first.content)


def test_a_key_taken_by_another_instance_meanwhile_is_a_duplicate() -> None:
    class TakenMeanwhile:
        def find_answer(self, scope: str, key_hash: str) -> None:
            return None

        def remember(self, *_: Any) -> bool:
            return False

    class Tx:
        idempotency = TakenMeanwhile()

    request = identify("queue.submit", None, "k", b"{}", lambda result: b"{}")
    with pytest.raises(ConflictError) as refused:
        once_only(lambda tx: None, request)(Tx())
    assert refused.value.code == "DUPLICATE_REQUEST"
