"""Targets that hang, drip, lie or break: every call ends, in time, with one clear line."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ksana.outbound.curl.caller import CurlCaller
from ksana.ports.caller import Reply, Request

MS = 1000
PARTIAL = "HTTP/1.1%20200%20OK%0D%0AContent-Length:%2099%0D%0A%0D%0Ahello%20world!"


@pytest.mark.spec("T12")
@pytest.mark.parametrize("way", ["/hang", "/drip", "/drip-body", "/endless"])
def test_the_deadline_bounds_the_attempt_as_a_whole(run: Callable[..., None], way: str) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(hard_cap=1 << 40)
        reply = await net.ask(way, caller=caller, timeout_us=300 * MS)
        assert reply.kind == "timeout" and reply.status is None
        assert 290 <= reply.timing.total_ms < 3000
        assert "within 300ms (connected after" in reply.error
        if way == "/hang":
            assert reply.error.endswith("0 bytes received)") and reply.error.startswith("no answer")

    run(scenario)


@pytest.mark.spec("T12")
def test_a_connect_that_hangs_ends_at_the_connect_deadline(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(8)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            port = full.getsockname()[1]
            reply = await net.ask(
                f"http://127.0.0.1:{port}/", timeout_us=10_000 * MS, connect_timeout_us=200 * MS
            )
            assert (reply.kind, reply.error) == (
                "timeout",
                f"no connection to 127.0.0.1:{port} within 200ms",
            )
            reply = await net.ask(f"http://127.0.0.1:{port}/", timeout_us=150 * MS)
            assert (reply.kind, reply.error) == (
                "timeout",
                f"no connection to 127.0.0.1:{port} within 150ms",
            )
            for each in waiting:
                each.close()

    run(scenario)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("/reset", "connection reset after 0 bytes"),
        ("/reset?after=" + PARTIAL, "connection reset after 12 bytes"),
        ("/short", "the answer was cut short after 10 bytes"),
        ("/nothing", "closed the connection without an answer"),
        ("/garbage", "the answer is not HTTP"),
        ("/headers", "header"),
    ],
)
def test_a_broken_answer_is_unreachable_and_says_how(
    run: Callable[..., None], way: str, words: str
) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask(way)
        assert reply.kind == "unreachable" and reply.status is None
        assert words in reply.error.lower() or words in reply.error
        assert "\n" not in reply.error and len(reply.error) <= 1024
        assert (await net.ask("/ok")).status == 200

    run(scenario)


def test_a_closed_port_says_who_refused(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        reply = await net.ask(f"http://127.0.0.1:{port}/")
        assert (reply.kind, reply.error) == (
            "unreachable",
            f"connection refused by 127.0.0.1:{port}",
        )

    run(scenario)


def test_a_name_that_does_not_exist_ends_without_stopping_the_loop(
    run: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        loop, gaps, over = asyncio.get_running_loop(), [0.0], asyncio.Event()

        async def tick() -> None:
            last = loop.time()
            while not over.is_set():
                await asyncio.sleep(0.01)
                gaps.append(loop.time() - last)
                last = loop.time()

        ticking = asyncio.ensure_future(tick())
        reply = await net.ask("http://nosuch.invalid/", timeout_us=1500 * MS)
        over.set()
        await ticking
        # A machine whose name server does not answer runs into the deadline instead.
        assert (reply.kind, reply.error) in [
            ("unreachable", "name not found: nosuch.invalid"),
            ("timeout", "the name nosuch.invalid was not found within 1.5s"),
        ]
        assert max(gaps) < 1.0

    run(scenario)


def test_a_call_is_ended_by_abort_exactly_once(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller: CurlCaller = net.caller()
        told: list[Reply] = []
        call = caller.call(Request("GET", net.server.url + "/hang"), told.append)
        await net.server.arrived.wait()
        call.abort()
        call.abort()
        assert told == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [reply.kind for reply in told] == ["aborted"]
        other = await net.ask("/ok", caller=caller)
        call.abort()
        assert other.status == 200 and len(told) == 1 and caller.in_flight == 0

    run(scenario)


def test_a_listener_may_abort_its_neighbours_and_start_new_calls(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller: CurlCaller = net.caller()
        told: list[str] = []
        over = asyncio.Event()
        calls: list[Any] = []

        def later(reply: Reply) -> None:
            told.append("later " + reply.kind)
            if len(told) == 20:
                over.set()

        def first(reply: Reply) -> None:
            told.append(reply.kind)
            if len(told) == 1:
                for call in calls:
                    call.abort()
                for _ in range(10):
                    caller.call(Request("GET", net.server.url + "/ok?size=3"), later)

        calls += [caller.call(Request("GET", net.server.url + "/ok"), first) for _ in range(10)]
        await asyncio.wait_for(over.wait(), 10)
        assert sorted(told) == ["aborted"] * 9 + ["answered"] + ["later answered"] * 10

    run(scenario)


def test_close_tells_every_call_and_frees_the_sockets(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        released = threading.Event()

        def look_up(host: str) -> list[str]:
            released.wait(30)
            return []

        caller: CurlCaller = net.caller(look_up=look_up)
        told: list[Reply] = []
        await net.ask("/ok", caller=caller)
        net.server.arrived.clear()
        for _ in range(5):
            caller.call(Request("GET", net.server.url + "/hang"), told.append)
        caller.call(Request("GET", "http://nosuch.invalid/"), told.append)
        await net.server.arrived.wait()
        caller.close()
        caller.close()
        released.set()
        assert [reply.kind for reply in told] == ["aborted"] * 6
        while net.server._tasks:  # every connection is seen to end by the other side
            await asyncio.sleep(0.005)

    run(scenario)


def test_tls_is_verified_against_the_name(
    run_once: Callable[..., None], certificate: tuple[Path, Path]
) -> None:
    key, cert = certificate

    async def scenario(net: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        async with type(net.server)().listening(context) as server:
            names = {"target.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}
            trusting = net.caller(ca_file=str(cert), names=names)
            reply = await net.ask(f"https://target.test:{server.port}/ok", caller=trusting)
            assert reply.status == 200 and reply.timing.tls_ms > 0
            other = await net.ask(f"https://other.test:{server.port}/ok", caller=trusting)
            assert other.kind == "unreachable" and other.error.startswith(
                f"TLS with other.test:{server.port} failed"
            )
            doubting = await net.ask(
                f"https://target.test:{server.port}/ok", caller=net.caller(names=names)
            )
            assert doubting.kind == "unreachable" and "failed" in doubting.error
            assert len(server.seen) == 1

    run_once(scenario)
