"""A request leaves only if it may at that moment: asked when there is a connection for it, not when
the call was begun."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ksana.ports.caller import NOT_OURS, Reply, Request
from tests.outbound.plain_target import listening, until

SECOND = 1_000_000
LONG_BODY = b"x" * (8 * 1024 * 1024)


class Permit:
    """Says yes until it is withdrawn, and counts how often it was asked."""

    def __init__(self, grants: int | None = None) -> None:
        self.grants = grants
        self.asked = 0

    def withdraw(self) -> None:
        self.grants = self.asked

    def __call__(self) -> bool:
        self.asked += 1
        return self.grants is None or self.asked <= self.grants


def begin(caller: Any, request: Request, permit: Permit) -> "asyncio.Future[Reply]":
    waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    caller.call(request, waiter.set_result, permit)
    return waiter


async def end_of(waiter: "asyncio.Future[Reply]") -> tuple[str, str | None, int]:
    reply = await asyncio.wait_for(waiter, 10)
    return reply.kind, reply.error, reply.sends


@pytest.mark.spec("C19", "C23")
def test_a_call_that_may_not_be_sent_when_its_name_is_known_is_not_sent(
    run_once: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        found = threading.Event()

        def look_up(host: str) -> list[str]:
            found.wait(10)
            return ["127.0.0.1"]

        port = net.server.url.rpartition(":")[2]
        permit = Permit()
        waiter = begin(
            net.caller(look_up=look_up), Request("GET", f"http://slow.test:{port}/ok"), permit
        )
        await asyncio.sleep(0.05)
        permit.withdraw()
        found.set()
        assert await end_of(waiter) == ("aborted", NOT_OURS, 0)
        assert not net.server.seen

    run_once(scenario)


@pytest.mark.spec("C19", "C23")
def test_a_call_that_may_not_be_sent_when_its_connection_opens_is_not_sent(
    run_once: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        # A listener with a full queue: the handshake ends when somebody is let in.
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            permit = Permit()
            waiter = begin(net.caller(), Request("POST", url, body=b"{}"), permit)
            await asyncio.sleep(0.3)
            assert not waiter.done()
            permit.withdraw()
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            heads = []

            async def let_in() -> None:
                while True:
                    sock, _ = await loop.sock_accept(listener)
                    heads.append(await loop.sock_recv(sock, 1000))
                    sock.close()

            letting_in = asyncio.ensure_future(let_in())
            for filler in fillers:
                filler.close()
            assert await end_of(waiter) == ("aborted", NOT_OURS, 0)
            await asyncio.sleep(0.05)
            letting_in.cancel()
            assert not any(heads)

    run_once(scenario)


@pytest.mark.spec("C19", "C23")
def test_a_call_on_a_kept_connection_is_not_sent_if_it_may_not_be(
    run_once: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller()
        await net.ask("/ok", caller=caller)
        waiter = begin(caller, Request("GET", net.server.url + "/ok"), Permit(grants=0))
        assert await end_of(waiter) == ("aborted", NOT_OURS, 0)
        assert len(net.server.seen) == 1
        # The caller goes on.
        assert (await net.ask("/ok", caller=caller)).status == 200

    run_once(scenario)


@pytest.mark.spec("C19", "C23")
def test_each_hop_is_asked_for(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        request = Request("GET", net.server.url + "/loop", follow_redirects=5)
        permit = Permit()
        reply = await asyncio.wait_for(begin(net.caller(), request, permit), 10)
        hops = len(net.server.seen)
        assert (reply.status, hops) == (302, 6)
        assert permit.asked >= hops
        permit = Permit()
        waiter = begin(net.caller(), request, permit)
        net.server.arrived.clear()
        await net.server.arrived.wait()
        permit.withdraw()
        kind, error, sends = await end_of(waiter)
        assert (kind, error, sends) == ("aborted", NOT_OURS, 1)
        assert len(net.server.seen) < 2 * hops

    run_once(scenario)


@pytest.mark.spec("C19", "C23")
def test_the_rest_of_a_long_request_is_held_back_too(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        got = 0
        go_on = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal got
            got += len(await reader.read(1000))
            await go_on.wait()
            while data := await reader.read(1 << 20):
                got += len(data)
            writer.close()

        async with listening(serve) as url:
            permit = Permit()
            waiter = begin(net.caller(), Request("POST", url, body=LONG_BODY), permit)
            await until(lambda: got > 0)
            await asyncio.sleep(0.1)  # the connection is full by now
            permit.withdraw()
            go_on.set()
            assert await end_of(waiter) == ("aborted", NOT_OURS, 1)
            await asyncio.sleep(0.1)
            assert 0 < got < len(LONG_BODY)

    run_once(scenario)


def test_a_long_body_arrives_whole(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller()
        for size in (16 * 1024, 16 * 1024 + 1, 5, 1_000_000, 0, 3_000_000):
            body = bytes(range(256)) * (size // 256 + 1)
            for method in ("POST", "PUT", "DELETE"):
                reply = await net.ask("/ok", caller=caller, method=method, body=body[:size])
                assert reply.status == 200, reply
                assert net.server.seen[-1].body == body[:size]
        assert (await net.ask("/ok", caller=caller)).status == 200
        assert net.server.seen[-1].body == b""

    run_once(scenario)
