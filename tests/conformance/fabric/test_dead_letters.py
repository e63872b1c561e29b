"""Dead letters of nodes beside those of the other surfaces, on every fabric: list, group, replay,
dismiss."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from ksana.api.core.dead_letters import routes
from ksana.base.errors import DependencyDownError
from ksana.base.instant import SECOND
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import InboxSettings
from ksana.service.core.outside_letters import OUTSIDE
from ksana.service.nodes.dead_letters import NodeLetters
from tests.api.ground import CoreServices, client_of, open_house
from tests.conformance.fabric.world import LONG, World, an_instance, eventually
from tests.ground.dead_letters import Failing

BASE = "/api/v1/dead-letters"
HASTY = InboxSettings(dlq_max_deliveries=1, dlq_min_idle_us=1000)


class Ground:
    """The endpoints over one fabric, and ways to make letters of each surface."""

    def __init__(
        self,
        core: CoreServices,
        http: httpx.AsyncClient,
        failing: Failing,
        one: Fabric,
        two: Fabric,
    ) -> None:
        self.core = core
        self.http = http
        self.failing = failing
        self.one = one
        self.two = two

    async def kill(self, fabric: Fabric, *bodies: bytes) -> None:
        """Messages that nobody handles."""
        for body in bodies:
            assert await fabric.inbox.send(fabric.instance_id, body) == "sent"
            await fabric.inbox.read(1, 5 * SECOND)
            assert await eventually(fabric.inbox.bury) == 1

    async def get(self, path: str = "", **query: Any) -> Any:
        reply = await self.http.get(BASE + path, params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def post(self, path: str, /, **body: Any) -> Any:
        reply = await self.http.post(BASE + path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture
async def ground(tmp_path: Path, world: World) -> AsyncIterator[Ground]:
    async with open_house(tmp_path) as core:
        one, two = world.join("one", HASTY), world.join("two", HASTY)
        for fabric in (one, two):
            await fabric.start()
            await fabric.presence.renew(an_instance(fabric), LONG)
            await fabric.inbox.open()
        failing = Failing(core.store)
        failing.letters.add_outside(NodeLetters(one, core.store))
        async with client_of(core.app(*routes(failing.letters))) as http:
            yield Ground(core, http, failing, one, two)


@pytest.mark.spec("B12", "N14")
async def test_letters_of_every_instance_stand_beside_those_of_other_surfaces(
    ground: Ground,
) -> None:
    job_id = await ground.failing.fail_job("addon", "no disk")
    await ground.kill(ground.one, b'{"kind":"assign"}')
    await ground.kill(ground.two, b'{"kind":"push"}')
    page = await ground.get()
    assert page["unavailable"] == [] and page["next_cursor"] is None
    assert sorted((one["surface"], one["source"]) for one in page["letters"]) == [
        ("nodes", "one"),
        ("nodes", "two"),
        ("queue", "addon"),
    ]
    assert job_id in [one["entity_id"] for one in page["letters"]]
    [letter] = (await ground.get(surface="nodes", source="two"))["letters"]
    assert letter["id"] >= OUTSIDE
    assert letter["entity_type"] == "NODE" and letter["entity_id"].startswith("two/")
    assert letter["error"] == "a message of kind push was handed out 1 times and never done"
    at = letter["died_at"]
    assert len((await ground.get(surface="nodes", source="two", **{"from": at}))["letters"]) == 1
    assert (await ground.get(surface="nodes", source="two", to=at))["letters"] == []


@pytest.mark.spec("B12")
async def test_pages_go_through_all_surfaces_once(ground: Ground) -> None:
    for number in range(3):
        await ground.kill(ground.one, b'{"kind":"assign"}')
        await ground.failing.fail_job("addon", f"no disk {number}")
        await ground.kill(ground.two, b'{"kind":"push"}')
    seen: list[int] = []
    times: list[datetime] = []
    cursor = None
    while True:
        page = await ground.get(limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [one["id"] for one in page["letters"]]
        times += [datetime.fromisoformat(one["died_at"]) for one in page["letters"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 9
    assert times == sorted(times, reverse=True)


@pytest.mark.spec("B12")
async def test_groups_are_by_kind_of_message_and_a_group_is_replayed(ground: Ground) -> None:
    await ground.kill(ground.one, b'{"kind":"assign","n":1}', b'{"kind":"assign","n":2}')
    await ground.kill(ground.two, b'{"kind":"push"}')
    await ground.failing.fail_job("addon", "no disk")
    groups = (await ground.get("/groups"))["groups"]
    assert [(one["surface"], one["count"]) for one in groups] == [
        ("nodes", 2),
        ("nodes", 1),
        ("queue", 1),
    ]
    paged = [(await ground.get("/groups", limit=1))]
    while paged[-1]["next_cursor"]:
        paged.append(await ground.get("/groups", limit=1, cursor=paged[-1]["next_cursor"]))
    assert sorted(one["group"] for page in paged for one in page["groups"]) == sorted(
        one["group"] for one in groups
    )
    wanted = {"surface": "nodes", "error": groups[0]["error"]}
    counted = await ground.post("/replay", filter=wanted, dry_run=True)
    assert (counted["count"], counted["replayed"]) == (2, [])
    done = await ground.post("/replay", filter=wanted)
    assert [(one["surface"], one["replayed_as"]) for one in done["replayed"]] == [
        ("nodes", "one"),
        ("nodes", "one"),
    ]
    back = [*await ground.one.inbox.read(2, SECOND), *await ground.one.inbox.read(2, SECOND)]
    assert sorted(one.body for one in back)[:2] == [
        b'{"kind":"assign","n":1}',
        b'{"kind":"assign","n":2}',
    ]
    assert len((await ground.get(surface="nodes"))["letters"]) == 1
    entity = done["replayed"][0]["entity_id"]
    assert await ground.failing.events("NODE", entity) == ["NODE_MESSAGE_REPLAYED"]


@pytest.mark.spec("B12")
async def test_one_letter_is_replayed_once_whoever_else_tries(ground: Ground) -> None:
    await ground.kill(ground.two, b'{"kind":"push"}')
    [letter] = (await ground.get())["letters"]
    counted = await ground.post("/replay", ids=[letter["id"], OUTSIDE + 1], dry_run=True)
    assert counted["count"] == 1
    told = await asyncio.gather(*(ground.post("/replay", ids=[letter["id"]]) for _ in range(4)))
    assert sorted(one["count"] for one in told) == [0, 0, 0, 1]
    codes = [one["refused"][0]["code"] for one in told if one["refused"]]
    assert codes == ["NOT_FOUND"] * 3
    assert (await ground.two.inbox.measure()).length == 1


@pytest.mark.spec("B12")
async def test_letters_are_dismissed_of_all_surfaces_by_one_filter(ground: Ground) -> None:
    await ground.kill(ground.one, b"no message of ours")
    await ground.failing.fail_job("addon", "no disk")
    [letter] = (await ground.get(surface="nodes"))["letters"]
    assert letter["error"].startswith("a message of no known kind was handed out")
    done = await ground.post("/dismiss", filter={})
    assert (done["count"], done["refused"]) == (2, [])
    assert (await ground.get())["letters"] == []
    assert (await ground.one.inbox.measure()).length == 0
    told = await ground.failing.events("NODE", letter["entity_id"])
    assert told == ["NODE_MESSAGE_DISMISSED"]


@pytest.mark.spec("B12")
async def test_a_fabric_that_is_away_keeps_back_only_its_own_letters(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ground.kill(ground.one, b'{"kind":"push"}')
    [letter] = (await ground.get())["letters"]
    await ground.failing.fail_job("addon", "no disk")

    async def fall(*_: Any) -> Any:
        raise DependencyDownError("Redis is away")

    monkeypatch.setattr(ground.one.presence, "list_living", fall)
    away = [{"surface": "nodes", "reason": "Redis is away"}]
    page = await ground.get()
    assert [one["surface"] for one in page["letters"]] == ["queue"]
    assert page["unavailable"] == away
    groups = await ground.get("/groups")
    assert ([one["surface"] for one in groups["groups"]], groups["unavailable"]) == (
        ["queue"],
        away,
    )
    assert (await ground.get(surface="nodes")) == {
        "letters": [],
        "next_cursor": None,
        "unavailable": away,
    }
    counted = await ground.post("/replay", filter={}, dry_run=True)
    assert (counted["count"], counted["unavailable"]) == (1, away)
    by_id = await ground.post("/replay", ids=[letter["id"]])
    assert by_id["count"] == 0
    assert "Redis is away" in by_id["refused"][0]["message"]
    done = await ground.post("/replay", filter={})
    assert (done["count"], done["unavailable"]) == (1, away)


@pytest.mark.spec("B12", "X19")
async def test_letters_of_nodes_are_read_with_a_read_key_and_settled_by_an_admin(
    ground: Ground,
) -> None:
    await ground.kill(ground.one, b'{"kind":"push"}')
    counts: list[int] = []
    for scope in ("queue:admin", "nodes:read", "nodes:write", "nodes:admin"):
        made = await ground.core.keys.create_key(scope, [scope])
        ground.http.headers["authorization"] = f"Bearer {made.text}"
        seen = len((await ground.get())["letters"])
        assert seen == (0 if scope == "queue:admin" else 1), scope
        if scope != "nodes:read":  # it may not write at all
            counts.append((await ground.post("/dismiss", filter={}))["count"])
    assert counts == [0, 0, 1]
    reply = await ground.http.get(BASE, params={"surface": "queue"})
    assert reply.status_code == 403
