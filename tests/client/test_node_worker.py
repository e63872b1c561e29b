"""The node worker of the SDK against the real server."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from ksana.client import (
    AccessError,
    ApiConflictError,
    BusyError,
    ModelNotAvailable,
    Node,
    NodeJobContext,
    NodeJobError,
    SocketClosed,
)
from ksana.client.node_socket import SocketAddress, is_for_good, pause_after
from ksana.domain.nodes import frames
from ksana.engine.nodes.parameters import NodeParameters
from tests.api.nodes_ground import NodesServer, nodes_server
from tests.client.nodes import QUICK, at_work, close_node, make_node, make_session, until
from tests.ground.child import free_port


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NodesServer]:
    async with nodes_server(tmp_path) as server:
        yield server


class Picture(msgspec.Struct):
    prompt: str


@pytest.mark.spec("N3", "N7")
async def test_async_and_sync_handlers_answer(server: NodesServer) -> None:
    node = make_node(server, labels={"zone": "a"}, version="2.1")

    @node.model("echo")
    async def echo(ctx: NodeJobContext) -> object:
        assert (ctx.node_id, ctx.attempt, ctx.model) == ("n", 1, "echo")
        assert ctx.deadline.tzinfo is not None
        return ctx.payload

    @node.model("draw", payload_type=Picture)
    def draw(ctx: NodeJobContext) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return f"a picture of {ctx.payload.prompt}"

    async with at_work(node), make_session(server) as session:
        record = server.engine.hosting.nodes["n"].record
        assert (record.models, record.labels) == (("echo", "draw"), {"zone": "a"})
        assert await session.request("echo", {"a": [1]}) == {"a": [1]}
        assert await session.request("draw", {"prompt": "a lake"}) == "a picture of a lake"
        with pytest.raises(NodeJobError) as refused:
            await session.request("draw", {"prompt": 7})
        assert refused.value.code == "INVALID_PAYLOAD"
    assert (node.stats.succeeded, node.stats.failed) == (2, 1)


@pytest.mark.spec("N7")
async def test_a_handler_that_fails_says_why(server: NodesServer) -> None:
    node = make_node(server)

    @node.model("own")
    async def own(ctx: NodeJobContext) -> None:
        raise NodeJobError("DISK_FULL", "nothing left")

    @node.model("odd")
    def odd(ctx: NodeJobContext) -> None:
        raise ZeroDivisionError("by zero")

    @node.model("wordy")
    def wordy(ctx: NodeJobContext) -> None:
        raise NodeJobError("LONG", "x" * 2_000_000)

    @node.model("strange")
    async def strange(ctx: NodeJobContext) -> object:
        return object()

    @node.model("large")
    async def large(ctx: NodeJobContext) -> str:
        return "x" * 1_000_000

    async with at_work(node), make_session(server) as session:
        found = {}
        for model in node.models:
            with pytest.raises(NodeJobError) as failed:
                await session.request(model)
            found[model] = (failed.value.code, failed.value.message)
    assert node.stats.connections == 1
    assert len(found["wordy"][1]) == 1024
    assert found["own"] == ("DISK_FULL", "nothing left")
    assert found["odd"] == ("HANDLER_ERROR", "ZeroDivisionError: by zero")
    assert found["strange"][0] == found["large"][0] == "INVALID_RESULT"


@pytest.mark.spec("N7")
async def test_a_job_goes_to_another_node_if_the_model_is_not_available(
    server: NodesServer,
) -> None:
    first, second = make_node(server), make_node(server, node_id="m", load=lambda: 9.0)
    asked = []

    @first.model("echo")
    async def lacking(ctx: NodeJobContext) -> None:
        asked.append(ctx.node_id)
        raise ModelNotAvailable("not loaded")

    @second.model("echo")
    async def echo(ctx: NodeJobContext) -> object:
        asked.append(ctx.node_id)
        return ctx.payload

    async with at_work(first), make_session(server) as session:
        job = session.request("echo", [1], wait_sec=10)
        await until(lambda: asked)
        async with at_work(second):
            assert await job == [1]
    assert asked == ["n", "m"]


@pytest.mark.spec("N7")
async def test_partials_reach_the_session_in_order_from_a_coroutine_and_from_a_thread(
    server: NodesServer,
) -> None:
    node = make_node(server)

    @node.model("async")
    async def in_loop(ctx: NodeJobContext) -> str:
        for number in range(5):
            ctx.partial({"n": number})
        return "whole"

    @node.model("sync")
    def in_thread(ctx: NodeJobContext) -> str:
        for number in range(5):
            ctx.partial({"n": number})
        return "whole"

    async with at_work(node), make_session(server) as session:
        for model in node.models:
            job = session.request(model)
            assert [part["n"] async for part in job] == [0, 1, 2, 3, 4]
            assert await job == "whole"


@pytest.mark.spec("N7")
async def test_a_cancel_reaches_coroutine_and_thread_and_frees_the_slot(
    server: NodesServer,
) -> None:
    node = make_node(server, slots=1)
    ended = []

    @node.model("async")
    async def in_loop(ctx: NodeJobContext) -> None:
        ctx.partial("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(ctx.cancelled.reason)
            raise

    @node.model("sync")
    def in_thread(ctx: NodeJobContext) -> None:
        ctx.partial("begun")
        assert ctx.cancelled.wait_in_thread(15)
        ended.append(ctx.cancelled.reason)
        ctx.raise_if_cancelled()

    async with at_work(node), make_session(server) as session:
        for model in node.models:
            job = session.request(model, wait_sec=5)
            assert await anext(aiter(job)) == "begun"
            job.cancel()
            with pytest.raises(NodeJobError) as cancelled:
                await job
            assert cancelled.value.code == "CANCELED"
        await until(lambda: len(ended) == 2 and node.running == 0)
    assert all(ended)
    assert node.stats.cancelled == 2


@pytest.mark.spec("N3", "N7")
async def test_it_connects_again_and_gives_up_the_attempts_of_the_lost_socket(
    server: NodesServer,
) -> None:
    node = make_node(server, slots=2)
    begun: list[NodeJobContext] = []
    release = threading.Event()

    @node.model("slow")
    def slow(ctx: NodeJobContext) -> str:
        begun.append(ctx)
        release.wait(15)
        return f"of attempt {ctx.attempt}"

    @node.model("echo")
    async def echo(ctx: NodeJobContext) -> object:
        return ctx.payload

    async with at_work(node), make_session(server) as session:
        job = session.request("slow")
        await until(lambda: begun)
        close_node(server)
        with pytest.raises(NodeJobError) as gone:
            await job
        assert gone.value.code == "NODE_GONE"
        await until(lambda: node.stats.connections == 2 and node.is_connected)
        assert begun[0].is_cancelled
        assert node.stats.lost == 1
        assert await session.request("echo", 1, wait_sec=5) == 1
        release.set()
        await until(lambda: node.running == 0)
        assert server.engine.hosting.stale == 0  # its late result was not sent
    assert node.stats.succeeded == 1


@pytest.mark.spec("N3")
async def test_it_connects_again_after_the_socket_was_cut_without_a_word(
    server: NodesServer,
) -> None:
    node = make_node(server)
    node.add_model("echo", lambda ctx: ctx.payload)
    async with at_work(node), make_session(server) as session:
        assert node._socket is not None
        node._socket._connection.transport.abort()
        await until(lambda: node.stats.connections == 2 and node.is_connected)
        assert await session.request("echo", 1, wait_sec=5) == 1


@pytest.mark.spec("N3")
async def test_heartbeats_keep_it_and_tell_its_models(tmp_path: Path) -> None:
    settings = NodeParameters(heartbeat_us=50_000, dead_after_us=5_000_000)
    async with nodes_server(tmp_path, settings) as server:
        node = make_node(server, models=["echo"], load=lambda: 0.75)
        node.add_model("echo", lambda ctx: ctx.payload)
        node.add_model("late", lambda ctx: "loaded")
        async with at_work(node), make_session(server) as session:
            hosted = server.engine.hosting.nodes["n"]
            await until(lambda: hosted.record.load == 0.75)
            assert hosted.record.models == ("echo",)
            node.announce(["echo", "late"])
            assert await session.request("late", wait_sec=5) == "loaded"
            with pytest.raises(ValueError, match="no handler for other"):
                node.announce(["other"])


@pytest.mark.spec("N3")
async def test_a_stop_lets_what_runs_finish_and_takes_no_more(server: NodesServer) -> None:
    node = make_node(server, slots=2)
    release = asyncio.Event()

    @node.model("slow")
    async def slow(ctx: NodeJobContext) -> str:
        await release.wait()
        return "finished"

    async with make_session(server) as session:
        async with at_work(node):
            job = session.request("slow")
            await until(lambda: node.running)
            node.stop()
            await until(lambda: server.engine.hosting.nodes["n"].record.models == ())
            release.set()
            assert await job == "finished"
        assert (node.stats.succeeded, node.stats.lost, node.running) == (1, 0, 0)
        await until(lambda: "n" not in server.engine.hosting.nodes)


@pytest.mark.spec("N7")
async def test_a_stop_without_grace_leaves_the_job_to_another_node(server: NodesServer) -> None:
    node, other = make_node(server, grace_sec=0.0), make_node(server, node_id="m", load=lambda: 9.0)

    @node.model("slow")
    async def slow(ctx: NodeJobContext) -> None:
        await asyncio.Event().wait()

    other.add_model("slow", lambda ctx: ctx.attempt)
    async with make_session(server) as session, at_work(node):
        job = session.request("slow")
        await until(lambda: node.running)
        async with at_work(other):
            node.stop()
            assert await job == 2
    assert node.stats.lost == 1


@pytest.mark.spec("N3")
async def test_an_id_that_a_live_node_has_ends_the_second(server: NodesServer) -> None:
    first, second = make_node(server), make_node(server)
    for node in (first, second):
        node.add_model("echo", lambda ctx: ctx.payload)
    async with at_work(first):
        with pytest.raises(ApiConflictError) as refused:
            await second.run()
        assert refused.value.code == "NODE_ID_CONFLICT"
        assert first.stats.connections == 1


@pytest.mark.spec("N3")
async def test_a_wrong_key_and_a_revoked_one_end_it(server: NodesServer) -> None:
    made = await server.core.keys.create_key("node", ["nodes:write"])
    wrong, right = make_node(server, api_key="wrong"), make_node(server, api_key=made.text)
    for node in (wrong, right):
        node.add_model("echo", lambda ctx: ctx.payload)
    with pytest.raises(AccessError):
        await wrong.run()
    running = asyncio.create_task(right.run())
    await until(lambda: right.is_connected)
    await server.core.keys.revoke_key(made.key.id)
    with pytest.raises(SocketClosed, match="4012"):
        await running


async def test_what_the_server_would_refuse_is_refused_before_it_is_sent(
    server: NodesServer,
) -> None:
    with pytest.raises(ValueError, match="no handler"):
        await make_node(server).run()
    node = make_node(server, node_id="not an id")
    node.add_model("echo", lambda ctx: None)
    with pytest.raises(ValueError, match="would refuse this node"):
        await node.run()
    with pytest.raises(ValueError, match="has a handler already"):
        node.add_model("echo", lambda ctx: None)
    with pytest.raises(ValueError, match="slots"):
        make_node(server, slots=0)
    with pytest.raises(ValueError, match="address"):
        Node("ftp://x")


async def test_a_server_that_asks_for_a_pause_is_given_one() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"code":"STORE_DOWN","message":"soon"}'
        head = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as fake:
        port = fake.sockets[0].getsockname()[1]
        options = {"api_key": "k", "connect_sec": 5.0, "tls": None, "headers": None}
        address = SocketAddress(f"http://127.0.0.1:{port}", "/ws/node", **options)
        with pytest.raises(BusyError) as busy:
            await address.open(frames.to_node)
    assert pause_after(busy.value, 1, QUICK) == 7.0
    assert not is_for_good(busy.value)


@pytest.mark.spec("N3")
async def test_of_several_addresses_one_that_answers_is_taken_and_left_when_it_is_lost(
    server: NodesServer,
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    for first in range(3):
        node = make_node(server, base_url=[dead, server.base, dead], node_id=f"n{first}")
        node._address._turn = first
        node.add_model("echo", lambda ctx: ctx.payload)
        async with at_work(node), make_session(server, base_url=[dead, server.base]) as session:
            assert await session.request("echo", first) == first
            close_node(server, f"n{first}")
            await until(lambda node=node: node.stats.connections == 2)
            assert await session.request("echo", "again", wait_sec=10) == "again"
    with pytest.raises(ValueError, match="no address"):
        Node([])
