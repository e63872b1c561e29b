"""Dead letters of all surfaces through the API: every endpoint, every refusal, and who may."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ksana.api.core.dead_letters import routes
from tests.api.ground import CoreServices, client_of, open_house
from tests.ground.dead_letters import Failing

BASE = "/api/v1/dead-letters"


class LetterGround:
    """The endpoints, and a way to make letters."""

    def __init__(self, core: CoreServices, http: httpx.AsyncClient, failing: Failing) -> None:
        self.core = core
        self.http = http
        self.failing = failing

    async def get(self, path: str = "", status: int = 200, **query: Any) -> Any:
        reply = await self.http.get(BASE + path, params=query)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def post(self, path: str, status: int = 200, /, **body: Any) -> Any:
        reply = await self.http.post(BASE + path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def as_key(self, *scopes: str) -> None:
        """Go on with a key of these scopes."""
        made = await self.core.keys.create_key("ops", scopes)
        self.http.headers["authorization"] = f"Bearer {made.text}"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[LetterGround]:
    async with open_house(tmp_path) as core:
        failing = Failing(core.store)
        async with client_of(core.app(*routes(failing.letters))) as http:
            yield LetterGround(core, http, failing)


@pytest.mark.spec("B12", "X8")
async def test_letters_of_all_surfaces_are_listed_newest_first(ground: LetterGround) -> None:
    task_id = await ground.failing.add_task()
    run_id = await ground.failing.fail_run(task_id, "answered 500")
    job_id = await ground.failing.fail_job("addon", "no disk")
    governance_id = await ground.failing.fail_governance_job("m1", "no luck")
    page = await ground.get()
    assert page["next_cursor"] is None
    assert [(one["surface"], one["entity_type"], one["entity_id"]) for one in page["letters"]] == [
        ("governance", "GOV_JOB", governance_id),
        ("queue", "JOB", job_id),
        ("tasks", "RUN", str(run_id)),
    ]
    [letter] = (await ground.get(surface="tasks"))["letters"]
    assert letter.keys() == {
        *("id", "surface", "entity_type", "entity_id", "source"),
        *("status", "error", "group", "died_at"),
    }
    assert (letter["source"], letter["status"], letter["error"]) == (
        str(task_id),
        "FAILED",
        "answered 500",
    )
    at = letter["died_at"]
    assert len((await ground.get(to=at))["letters"]) == 0
    assert len((await ground.get(**{"from": at}))["letters"]) == 3
    assert (await ground.get(error="answered 503"))["letters"] == [letter]
    assert (await ground.get(surface="tasks", source=str(task_id), error="answered 1"))[
        "letters"
    ] == [letter]
    assert (await ground.get(surface="queue", source="another"))["letters"] == []


@pytest.mark.spec("B12", "X13")
async def test_pages_and_groups_go_on_by_their_cursors(ground: LetterGround) -> None:
    task_id = await ground.failing.add_task()
    for number in range(5):
        await ground.failing.fail_run(task_id, f"answered {500 + number}")
    await ground.failing.fail_run(task_id, "no route")
    await ground.failing.fail_job("a", "no route")
    seen: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        page = await ground.get(limit=2, **cursor)
        seen += [one["id"] for one in page["letters"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == 7
    assert seen == sorted(seen, reverse=True)
    whole = await ground.get("/groups")
    told = [
        (one["surface"], one["error"], one["count"], one["is_capped"]) for one in whole["groups"]
    ]
    assert sorted(told) == [
        ("queue", "no route", 1, False),
        ("tasks", "answered #", 5, False),
        ("tasks", "no route", 1, False),
    ]
    assert whole["groups"][0]["error"] == "answered #"
    assert whole["groups"][0]["first_at"] < whole["groups"][0]["last_at"]
    assert whole["groups"][0]["newest"]["error"] == "answered 504"
    groups: list[str] = []
    cursor = {}
    while True:
        page = await ground.get("/groups", limit=1, **cursor)
        groups += [f"{one['surface']} {one['error']}" for one in page["groups"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(groups) == ["queue no route", "tasks answered #", "tasks no route"]
    assert len((await ground.get("/groups", surface="queue"))["groups"]) == 1


@pytest.mark.spec("B12")
async def test_a_dry_run_counts_and_changes_nothing(ground: LetterGround) -> None:
    task_id = await ground.failing.add_task()
    for _ in range(3):
        await ground.failing.fail_run(task_id)
    await ground.failing.fail_job()
    ids = [one["id"] for one in (await ground.get())["letters"]]
    for path in ("/replay", "/dismiss"):
        for body, count in (
            ({"filter": {}}, 4),
            ({"filter": {"surface": "tasks"}}, 3),
            ({"filter": {"surface": "tasks", "source": str(task_id), "error": "no route"}}, 3),
            ({"filter": {"error": "another"}}, 0),
            ({"ids": [*ids, 99]}, 4),
        ):
            told = await ground.post(path, dry_run=True, **body)
            assert (told["dry_run"], told["count"], told["is_capped"]) == (True, count, False)
    assert len((await ground.get())["letters"]) == 4


@pytest.mark.spec("B12")
async def test_letters_are_replayed_by_id_and_by_filter_and_not_twice(ground: LetterGround) -> None:
    task_id = await ground.failing.add_task()
    run_id = await ground.failing.fail_run(task_id)
    job_id = await ground.failing.fail_job()
    [job, run] = (await ground.get())["letters"]
    told = await ground.post("/replay", ids=[run["id"], 99])
    assert told["count"] == 1
    [replayed] = told["replayed"]
    assert (replayed["entity_id"], replayed["surface"]) == (str(run_id), "tasks")
    assert int(replayed["replayed_as"]) > run_id
    assert [(one["id"], one["code"]) for one in told["refused"]] == [(99, "NOT_FOUND")]
    again = await ground.post("/replay", ids=[run["id"]])
    assert (again["count"], again["replayed"]) == (0, [])
    told = await ground.post("/replay", filter={"surface": "queue"})
    assert [one["entity_id"] for one in told["replayed"]] == [job_id]
    assert told["next_cursor"] is None
    assert (await ground.get())["letters"] == []
    assert job["entity_id"] == job_id


@pytest.mark.spec("B12")
async def test_all_that_match_are_taken_in_bounded_calls(ground: LetterGround) -> None:
    task_id = await ground.failing.add_task()
    for _ in range(5):
        await ground.failing.fail_run(task_id)
    calls, cursor = 0, None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        told = await ground.post("/replay", filter={}, limit=2, **more)
        calls += 1
        cursor = told["next_cursor"]
        if cursor is None:
            break
    assert calls == 3
    assert (await ground.get())["letters"] == []


@pytest.mark.spec("B12")
async def test_dismissed_letters_are_gone_and_nothing_runs(ground: LetterGround) -> None:
    task_id = await ground.failing.add_task()
    for _ in range(3):
        await ground.failing.fail_run(task_id)
    told = await ground.post("/dismiss", filter={"surface": "tasks"})
    assert (told["count"], told["refused"], told["next_cursor"]) == (3, [], None)
    assert (await ground.get())["letters"] == []
    assert ground.failing.hints.hosts == []


@pytest.mark.spec("B12", "X19")
async def test_a_key_sees_and_settles_the_surfaces_it_may(ground: LetterGround) -> None:
    task_id = await ground.failing.add_task()
    await ground.failing.fail_run(task_id)
    await ground.failing.fail_job()
    ids = [one["id"] for one in (await ground.get())["letters"]]
    await ground.as_key("tasks:read", "queue:write")
    assert {one["surface"] for one in (await ground.get())["letters"]} == {"tasks", "queue"}
    assert (await ground.get(surface="governance", status=403))["scope"] == "governance:read"
    refused = await ground.post("/replay", 403, filter={"surface": "tasks"})
    assert refused["scope"] == "tasks:write"
    assert (await ground.post("/replay", filter={}, dry_run=True))["count"] == 1
    assert (await ground.post("/replay", ids=ids, dry_run=True))["count"] == 1
    told = await ground.post("/replay", ids=ids)
    assert [one["surface"] for one in told["replayed"]] == ["queue"]
    assert [one["code"] for one in told["refused"]] == ["NOT_FOUND"]
    await ground.as_key("governance:admin")
    assert (await ground.get())["letters"] == []
    assert (await ground.get("/groups"))["groups"] == []
    await ground.as_key("tasks:read")
    assert (await ground.post("/dismiss", 403, filter={}))["scope"] == "any:write"
    assert len((await ground.get())["letters"]) == 1


@pytest.mark.spec("B12", "X8", "X9")
async def test_what_cannot_be_meant_is_refused_by_name(ground: LetterGround) -> None:
    for query, field in (
        ({"surface": "dreams"}, "surface"),
        ({"source": "a"}, "source"),
        ({"from": "yesterday"}, "from"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "1.2.3"}, "cursor"),
        ({"cursor": "9" * 30 + ".1"}, "cursor"),
        ({"limit": 501}, "limit"),
        ({"what": "1"}, "what"),
    ):
        assert (await ground.get(status=400, **query))["field"] == field
    assert (await ground.get("/groups", 400, cursor="queue"))["field"] == "cursor"
    for body, field in (
        ({}, "filter"),
        ({"ids": [1], "filter": {}}, "filter"),
        ({"ids": []}, "ids"),
        ({"ids": [0]}, "ids"),
        ({"ids": [1] * 501}, "ids"),
        ({"filter": {"source": "a"}}, "filter.source"),
        ({"filter": {"surface": "dreams"}}, "filter.surface"),
        ({"filter": {"to": "1"}}, "filter.to"),
        ({"filter": {"what": 1}}, "filter.what"),
        ({"filter": {}, "cursor": "a"}, "cursor"),
    ):
        told = await ground.post("/replay", 400, **body)
        assert told["field"].startswith(field), told
