"""The session client of the SDK against the real server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.client import (
    AccessError,
    BusyError,
    ClientError,
    NodeJobContext,
    NodeSession,
    SocketClosed,
    TransportError,
)
from tests.api.nodes_ground import NodesServer, nodes_server
from tests.client.nodes import (
    QUICK,
    at_work,
    close_sessions,
    make_node,
    make_session,
    until,
)
from tests.ground.child import free_port


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NodesServer]:
    async with nodes_server(tmp_path) as server:
        yield server


@pytest.mark.spec("N4")
async def test_many_jobs_at_once_each_get_their_own_result(server: NodesServer) -> None:
    node = make_node(server, slots=8)
    node.add_model("echo", _echo)
    async with at_work(node), make_session(server) as session:
        jobs = [session.request("echo", {"n": n}, wait_sec=15) for n in range(100)]
        assert await asyncio.gather(*jobs) == [{"n": n} for n in range(100)]
        assert len({job.job_id for job in jobs}) == 100
        assert all(job.is_finished and not job.is_durable for job in jobs)


@pytest.mark.spec("N4")
async def test_a_request_that_no_node_can_serve_is_refused(server: NodesServer) -> None:
    async with make_session(server) as session:
        job = session.request("echo")
        with pytest.raises(BusyError) as refused:
            await job
        assert refused.value.code == "NO_AVAILABLE_NODE"
        assert [part async for part in job] == []
        with pytest.raises(BusyError):
            await job.wait_created()


@pytest.mark.spec("N4")
async def test_a_request_is_cancelled_before_a_node_has_it(server: NodesServer) -> None:
    async with make_session(server) as session:
        job = session.request("echo", wait_sec=60)
        job.cancel()
        with pytest.raises(ClientError, match="CANCELED"):
            await job


@pytest.mark.spec("N4", "N8")
async def test_a_result_that_came_while_it_was_away_is_told(server: NodesServer) -> None:
    node = make_node(server)
    release = asyncio.Event()
    runs = []

    @node.model("slow")
    async def slow(ctx: NodeJobContext) -> str:
        runs.append(ctx.job_id)
        await release.wait()
        return "whole"

    async with at_work(node), make_session(server) as session:
        job = session.request("slow")
        job_id = await job.wait_created()
        await until(lambda: runs)
        session_id = session.session_id
        close_sessions(server)
        release.set()
        assert await job == "whole"
        await until(lambda: session.connections == 2)
        assert (session.session_id, job.job_id) == (session_id, job_id)
        assert runs == [job_id]


@pytest.mark.spec("N4", "N8")
async def test_a_request_made_without_a_connection_is_sent_with_the_next_one(
    server: NodesServer,
) -> None:
    node = make_node(server)
    node.add_model("echo", _echo)
    async with at_work(node), make_session(server) as session:
        close_sessions(server)
        await until(lambda: session._socket is None)
        job = session.request("echo", "late")
        assert await job == "late"
        assert session.connections == 2


@pytest.mark.spec("N4", "N8")
async def test_the_same_request_id_makes_the_same_job(server: NodesServer) -> None:
    node = make_node(server)
    node.add_model("echo", _echo)
    async with at_work(node), make_session(server) as session:
        first = session.request("echo", 1, request_id="r-1")
        with pytest.raises(ValueError, match="under way"):
            session.request("echo", 1, request_id="r-1")
        assert await first == 1
        again = session.request("echo", 1, request_id="r-1")
        assert await again == 1
        assert again.job_id == first.job_id
    assert node.stats.assigned == 1


@pytest.mark.spec("N4")
async def test_a_session_that_another_socket_took_over_ends(server: NodesServer) -> None:
    async with make_session(server, session_id="s") as first:
        job = first.request("echo", wait_sec=60)
        await job.wait_created()
        async with make_session(server, session_id="s"):
            with pytest.raises(SocketClosed, match="4009"):
                await job
            with pytest.raises(SocketClosed, match="4009"):
                first.request("echo")


async def test_what_is_awaited_without_a_server_ends_in_time(tmp_path: Path) -> None:
    async with nodes_server(tmp_path) as server:
        session = make_session(server, give_up_sec=0.2)
        await session.__aenter__()
        job = session.request("echo", wait_sec=60)
        await job.wait_created()
    with pytest.raises(TransportError) as lost:
        await asyncio.wait_for(job.result(), 15)
    assert lost.value.is_outcome_unknown
    await session.close()
    with pytest.raises(ClientError):
        session.request("echo")


async def test_no_server_and_a_wrong_key_are_told_at_once(server: NodesServer) -> None:
    nowhere = NodeSession(f"http://127.0.0.1:{free_port()}", connect_sec=0.3, backoff=QUICK)
    with pytest.raises(TransportError, match="not connected"):
        await nowhere.__aenter__()
    await server.core.keys.create_key("other", ["nodes:write"])
    with pytest.raises(AccessError):
        await make_session(server, api_key="wrong").__aenter__()


async def test_what_the_server_would_refuse_is_refused_before_it_is_sent(
    server: NodesServer,
) -> None:
    async with make_session(server) as session:
        with pytest.raises(ValueError, match="would refuse"):
            session.request("echo", priority=12)
        with pytest.raises(ValueError, match="bytes"):
            session.request("echo", "x" * 2_000_000)


async def test_a_caller_that_stops_waiting_does_not_cancel_the_job(server: NodesServer) -> None:
    node = make_node(server)
    release = asyncio.Event()

    @node.model("slow")
    async def slow(ctx: NodeJobContext) -> str:
        await release.wait()
        return "whole"

    async with at_work(node), make_session(server) as session:
        job = session.request("slow")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.result(), 0.05)
        release.set()
        assert await job == "whole"


async def _echo(ctx: NodeJobContext) -> object:
    return ctx.payload
