"""The nodes surface through the real server: sockets, endpoints, bad frames, keys."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.api.nodes_ground import NodesServer, nodes_server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NodesServer]:
    async with nodes_server(tmp_path) as server:
        yield server


@pytest.fixture
async def http(server: NodesServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.base) as client:
        yield client


@pytest.mark.spec("N3", "N4", "N7")
async def test_a_job_over_two_sockets(server: NodesServer) -> None:
    async with server.node() as node, server.session() as session:
        await session.send(
            {"type": "job_request", "request_id": "r", "model": "echo", "payload": {"a": [1]}}
        )
        created = await session.read("job_created")
        assert created["durable"] is False
        assert created["request_id"] == "r"
        assign = await node.read("job_assign")
        assert assign["payload"] == {"a": [1]}
        assert assign["deadline"].endswith("Z")
        assert assign["attempt_id"] == 1
        about = {"job_id": assign["job_id"], "attempt_id": 1}
        await node.send({"type": "job_ack", **about})
        await node.send({"type": "asr_partial", **about, "data": "half"})
        partial = await session.read("job_partial")
        assert partial["data"] == "half"
        await node.send({"type": "job_result", **about, "success": True, "data": "whole"})
        result = await session.read("job_result")
        assert (result["success"], result["data"]) == (True, "whole")
        assert result["request_id"] == "r"


@pytest.mark.spec("N3")
async def test_registering_gives_an_id_and_the_rules(server: NodesServer) -> None:
    async with server.socket("/ws/node") as wire:
        await wire.send({"type": "node_register", "slots": 1, "models": ["m"], "future": True})
        ack = await wire.read()
        assert ack["node_id"].startswith("node-")
        assert (ack["heartbeat_sec"], ack["dead_after_sec"]) == (15.0, 45.0)
        assert ack["instance_id"] == "here"
        assert ack["durable"] is False
        await wire.send({"type": "ping", "id": "7"})
        assert await wire.read() == {"type": "pong", "id": "7"}


@pytest.mark.spec("N3")
async def test_a_second_live_node_with_the_same_id_is_told_so_and_closed(
    server: NodesServer,
) -> None:
    async with server.node() as first, server.socket("/ws/node") as second:
        await second.send({"type": "node_register", "slots": 1, "node_id": "n"})
        assert (await first.read("ping"))["type"] == "ping"
        await first.send({"type": "pong", "id": "probe"})
        assert (await second.read("error"))["code"] == "NODE_ID_CONFLICT"
        assert await second.wait_closed() == (4010, "NODE_ID_CONFLICT")
        await first.send({"type": "ping", "id": "still here"})
        assert (await first.read("pong"))["id"] == "still here"


@pytest.mark.spec("N3", "N4")
@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "[]",
        "{}",
        '{"type":"unknown"}',
        '{"type":"job_result"}',
        '{"type":"job_ack","job_id":1,"attempt_id":1}',
        "[" * 100_000,
        '{"type":"job_partial","job_id":"j","attempt_id":1,"data":' + "[" * 50_000 + "}",
    ],
)
async def test_a_frame_that_cannot_be_read_is_answered_and_disturbs_nothing(
    server: NodesServer, bad: str
) -> None:
    async with server.node() as node, server.session() as session:
        for wire in (node, session):
            await wire.send(bad)
            error = await wire.read("error")
            assert error["code"] == "INVALID_FRAME"
            assert error["message"]
        serving = asyncio.create_task(node.echo())
        await session.send({"type": "job_request", "model": "echo"})
        assert (await session.read("job_result"))["success"] is True
        await serving


async def test_a_peer_that_speaks_another_protocol_is_closed(server: NodesServer) -> None:
    async with server.node() as node:
        for _ in range(20):
            await node.send("nonsense")
        assert (await node.wait_closed())[0] == 1003


@pytest.mark.spec("N3", "N4")
@pytest.mark.parametrize("path", ["/ws/node", "/ws/session"])
async def test_the_first_frame_must_be_the_right_one(server: NodesServer, path: str) -> None:
    async with server.socket(path) as wire:
        await wire.send({"type": "ping"})
        error = await wire.read("error")
        assert error["code"] == "PROTOCOL"
        assert await wire.wait_closed() == (1003, "FIRST_FRAME")


@pytest.mark.spec("X13", "N3")
async def test_a_frame_that_is_too_large_closes_its_socket_alone(server: NodesServer) -> None:
    async with server.node() as node, server.session() as session:
        with pytest.raises(ConnectionClosed):
            await node.send({"type": "node_error", "message": "x" * (2 * 1024 * 1024)})
            await node.read()
        assert node.socket.close_code == 1009
        await session.send({"type": "ping", "id": "1"})
        assert (await session.read("pong"))["id"] == "1"


@pytest.mark.spec("N5")
async def test_a_request_without_a_node_is_answered_with_an_error(server: NodesServer) -> None:
    async with server.session() as session:
        await session.send({"type": "job_request", "request_id": "r", "model": "none"})
        error = await session.read("error")
        assert (error["code"], error["request_id"]) == ("NO_AVAILABLE_NODE", "r")
        await session.send({"type": "job_request", "request_id": "r", "model": "m", "priority": 10})
        assert (await session.read("error"))["code"] == "INVALID_FRAME"


@pytest.mark.spec("N12")
async def test_a_node_that_disconnects_has_its_job_done_by_another(server: NodesServer) -> None:
    async with server.session() as session, server.node(node_id="b", labels={"x": "y"}) as other:
        async with server.node(node_id="a", slots=100) as leaving:
            await session.send({"type": "job_request", "model": "echo", "wait_sec": 10})
            taker = asyncio.create_task(leaving.read("job_assign"))
            helper = asyncio.create_task(other.read("job_assign"))
            done, _ = await asyncio.wait((taker, helper), return_when=asyncio.FIRST_COMPLETED)
            if helper in done:  # it went to the other one at once: nothing to take over
                taker.cancel()
                return
        assign = await helper
        assert assign["attempt_id"] == 2


@pytest.mark.spec("N4")
async def test_node_jobs_without_a_socket(server: NodesServer, http: httpx.AsyncClient) -> None:
    async with server.node() as node:
        body = {"model": "echo", "payload": {"n": 1}, "request_id": "r"}
        made = await http.post("/api/v1/node-jobs", json=body)
        assert made.status_code == 201, made.text
        told = made.json()
        assert (told["durable"], told["duplicate"]) == (False, False)
        again = await http.post("/api/v1/node-jobs", json=body)
        assert (again.status_code, again.json()["job_id"]) == (200, told["job_id"])
        await node.echo()
        async with asyncio.timeout(10):
            while True:
                shown = (await http.get(f"/api/v1/node-jobs/{told['job_id']}")).json()
                if shown["success"] is not None:
                    break
                await asyncio.sleep(0.01)
        assert (shown["success"], shown["data"], shown["node_id"]) == (True, {"n": 1}, "n")
        late = await http.post(f"/api/v1/node-jobs/{told['job_id']}/cancel")
        assert (late.status_code, late.json()["code"]) == (409, "ILLEGAL_TRANSITION")


@pytest.mark.spec("N4", "N5", "X8")
async def test_refusals_of_node_jobs(server: NodesServer, http: httpx.AsyncClient) -> None:
    for body, status, code in (
        ({"model": "echo"}, 409, "NO_AVAILABLE_NODE"),
        ({}, 400, "INVALID_ARGUMENT"),
        ({"model": "echo", "colour": 1}, 400, "INVALID_ARGUMENT"),
        ({"model": "echo", "priority": 10}, 400, "INVALID_ARGUMENT"),
    ):
        answer = await http.post("/api/v1/node-jobs", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    missing = "/api/v1/node-jobs/6f1c3c2e-8f0d-4b8e-9d55-0f6b1a2c3d4e"
    assert (await http.get(missing)).status_code == 404
    assert (await http.get("/api/v1/node-jobs/abc")).json()["code"] == "INVALID_ID"


@pytest.mark.spec("N14")
async def test_nodes_are_listed_and_drained(server: NodesServer, http: httpx.AsyncClient) -> None:
    async with server.node(labels={"gpu": "yes"}) as node, server.session() as session:
        listed = (await http.get("/api/v1/nodes")).json()["nodes"]
        assert [(one["node_id"], one["slots"], one["draining"]) for one in listed] == [
            ("n", 4, False)
        ]
        assert (await http.post("/api/v1/nodes/n/drain")).json()["draining"] is True
        await session.send({"type": "job_request", "model": "echo"})
        assert "draining" in (await session.read("error"))["message"]
        assert (await http.post("/api/v1/nodes/n/undrain")).json()["draining"] is False
        await session.send({"type": "job_request", "model": "echo"})
        await node.echo()
        assert (await session.read("job_result"))["success"] is True
    assert (await http.post("/api/v1/nodes/none/drain")).status_code == 404


@pytest.mark.spec("N14")
async def test_the_cluster_page_and_the_dead_letters(
    server: NodesServer, http: httpx.AsyncClient
) -> None:
    cluster = (await http.get("/api/v1/cluster")).json()
    assert cluster["instance_id"] == "here"
    assert cluster["coordination"]["ok"] is True
    assert cluster["coordination"]["durable"] is False
    assert [one["instance_id"] for one in cluster["instances"]] == ["here"]
    assert (await http.get("/api/v1/cluster/dlq")).json() == {"letters": [], "next_after": None}
    after = await http.get("/api/v1/cluster/dlq?after=1-0")
    assert (after.status_code, after.json()["letters"]) == (200, [])
    gone = await http.delete("/api/v1/cluster/dlq/here/1-1")
    assert (gone.status_code, gone.json()["code"]) == (404, "NOT_FOUND")
    bad = await http.post("/api/v1/cluster/dlq/here/x/replay")
    assert (bad.status_code, bad.json()["code"]) == (400, "INVALID_ID")


@pytest.mark.spec("X19", "N3")
async def test_a_socket_needs_a_key_with_the_scope_and_a_revoked_key_closes_it(
    server: NodesServer,
) -> None:
    keys = server.core.keys
    good = await keys.create_key("good", ["nodes:write"])
    poor = await keys.create_key("poor", ["queue:write"])
    for text, status in (("", 401), (poor.text, 403)):
        headers = {"authorization": f"Bearer {text}"} if text else {}
        with pytest.raises(InvalidStatus) as caught:
            async with server.socket("/ws/node", additional_headers=headers):
                pass
        assert caught.value.response.status_code == status
        assert json.loads(caught.value.response.body)["code"]
    headers = {"authorization": f"Bearer {good.text}"}
    async with server.socket("/ws/node", additional_headers=headers) as wire:
        await wire.send({"type": "node_register", "slots": 1})
        await wire.read("node_register_ack")
        await keys.revoke_key(good.key.id)
        assert (await wire.wait_closed())[0] == 4012


@pytest.mark.spec("X19", "N4")
async def test_two_keys_never_share_a_session(server: NodesServer) -> None:
    made = [await server.core.keys.create_key(name, ["nodes:write"]) for name in ("a", "b")]
    first, second = ({"authorization": f"Bearer {key.text}"} for key in made)
    async with server.socket("/ws/session", additional_headers=first) as mine:
        await mine.send({"type": "session_init", "session_id": "same"})
        assert (await mine.read())["session_id"] == "same"
        async with server.socket("/ws/session", additional_headers=second) as theirs:
            await theirs.send({"type": "session_init", "session_id": "same"})
            await theirs.read("session_init_ack")
            await mine.send({"type": "ping", "id": "open"})
            assert (await mine.read("pong"))["id"] == "open"
        async with server.socket("/ws/session", additional_headers=first) as again:
            await again.send({"type": "session_init", "session_id": "same"})
            await again.read("session_init_ack")
            assert (await mine.wait_closed())[0] == 4009


@pytest.mark.spec("N3")
async def test_a_node_that_reads_nothing_is_closed_and_its_jobs_go_on(server: NodesServer) -> None:
    async with server.node(node_id="deaf", slots=64), server.session() as session:
        payload = "x" * 900_000
        for _ in range(40):
            await session.send({"type": "job_request", "model": "echo", "payload": payload})
        async with asyncio.timeout(20):
            while "deaf" in server.engine.hosting.nodes:
                await asyncio.sleep(0.02)
        async with server.node(node_id="keen") as keen:
            await session.send({"type": "job_request", "model": "echo", "request_id": "after"})
            await keen.echo()
            while (await session.read("job_result"))["request_id"] != "after":
                pass


@pytest.mark.spec("N4", "X13")
async def test_sessions_are_listed_a_page_at_a_time(
    server: NodesServer, http: httpx.AsyncClient
) -> None:
    async def listed() -> list[str]:
        page = (await http.get("/api/v1/sessions")).json()
        return [one["session_id"] for one in page["sessions"]]

    async with server.session(session_id="a"), server.session(session_id="b"):
        async with server.session(session_id="c"), asyncio.timeout(30):
            while await listed() != ["a", "b", "c"]:
                await asyncio.sleep(0.02)
            page = (await http.get("/api/v1/sessions?limit=2")).json()
            assert page["next_after"] == "b"
            first = page["sessions"][0]
            assert (first["instance_id"], first["key_id"]) == ("here", None)
            assert first["connected_at"].endswith("Z")
            rest = (await http.get("/api/v1/sessions?limit=2&after=b")).json()
            assert [one["session_id"] for one in rest["sessions"]] == ["c"]
            assert rest["next_after"] is None
        async with asyncio.timeout(30):
            while await listed() != ["a", "b"]:
                await asyncio.sleep(0.02)
    bad = await http.get("/api/v1/sessions?limit=501")
    assert (bad.status_code, bad.json()["field"]) == (400, "limit")
