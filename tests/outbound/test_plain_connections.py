"""Connections of the plain client: kept ones that die, old ones, several addresses."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest

from ksana.outbound.plain import connect, connection
from tests.outbound.plain_target import MS, OK, idle_connections, listening, until, used_curl


def test_a_setting_sends_plain_http_by_libcurl_too(run_plain: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(plain_http="libcurl")
        assert (await net.ask("/ok", caller=caller)).status == 200
        assert used_curl(caller) and idle_connections(caller) == 0

    run_plain(scenario)


def test_plain_calls_do_without_libcurl(run_plain: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller()
        assert (await net.ask("/ok", caller=caller)).status == 200
        assert (await net.ask("/loop", caller=caller, follow_redirects=2)).status == 302
        assert not used_curl(caller) and net.server.connections == 1

    run_plain(scenario)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
def test_a_kept_connection_that_ends_or_speaks_unasked_is_never_used_again(
    run_plain: Callable[..., None], data: bytes
) -> None:
    async def scenario(net: Any) -> None:
        said = asyncio.Event()

        async def talk(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await said.wait()
            writer.write(data)
            if data:
                await reader.read()

        async with listening(talk) as url:
            caller = net.caller()
            assert (await net.ask(url, caller=caller)).body == b"ok"
            assert idle_connections(caller) == 1
            said.set()
            await until(lambda: idle_connections(caller) == 0)
            assert (await net.ask(url, caller=caller)).body == b"ok"

    run_plain(scenario)


def test_a_request_on_a_kept_connection_that_dies_unanswered_is_sent_once_more(
    run: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        seen: list[int] = []

        async def talk(reader: Any, writer: Any) -> None:
            mine, seen_here = len(seen), 0
            while True:
                await reader.readuntil(b"\r\n\r\n")
                seen.append(mine)
                seen_here += 1
                if seen_here == 2:
                    return
                writer.write(OK)

        async with listening(talk) as url:
            caller = net.caller()
            assert (await net.ask(url, caller=caller)).body == b"ok"
            assert (await net.ask(url, caller=caller)).body == b"ok"
            assert seen == [0, 0, 2], "the second was sent again, on a new connection"

    run(scenario)


@pytest.mark.spec("C23")
def test_a_request_that_may_not_be_resent_goes_out_once_on_a_connection_of_its_own(
    run: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        seen: list[int] = []
        opened = iter(range(100))

        async def talk(reader: Any, writer: Any) -> None:
            mine = next(opened)
            while True:
                await reader.readuntil(b"\r\n\r\n")
                seen.append(mine)
                if mine == 1:
                    return
                writer.write(OK)

        async with listening(talk) as url:
            caller = net.caller()
            assert (await net.ask(url, caller=caller)).body == b"ok"
            reply = await net.ask(url, caller=caller, may_resend=False)
            assert (reply.kind, seen) == ("unreachable", [0, 1])
            assert (await net.ask(url, caller=caller)).body == b"ok"
            assert seen == [0, 1, 0], "the kept connection was left for those who may use it"

    run(scenario)


def test_a_request_on_a_new_connection_is_never_sent_twice(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        seen: list[bytes] = []

        async def talk(reader: Any, writer: Any) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))

        async with listening(talk) as url:
            reply = await net.ask(url)
            assert (reply.kind, reply.error) == (
                "unreachable",
                f"{url[7:]} closed the connection without an answer",
            )
            assert len(seen) == 1

    run(scenario)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n"])
def test_what_goes_wrong_on_a_kept_connection_has_the_same_words(
    run: Callable[..., None], answer: bytes
) -> None:
    async def scenario(net: Any) -> None:
        async def talk(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await reader.read()

        async with listening(talk) as url:
            caller = net.caller()
            assert (await net.ask(url, caller=caller)).body == b"ok"
            reply = await net.ask(url, caller=caller, timeout_us=150 * MS)
            if answer:
                assert (reply.kind, reply.error) == ("unreachable", "the answer is not HTTP")
            else:
                assert reply.kind == "timeout" and reply.error.startswith(
                    "no answer within 150ms (connected after 0 ms"
                )

    run(scenario)


def test_a_connection_idle_for_too_long_is_not_used(
    run_plain: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller()
        await net.ask("/ok", caller=caller)
        monkeypatch.setattr(connection, "CHECK_FIRST_AFTER_S", -1.0)
        monkeypatch.setattr(connection, "CHECK_AFTER_S", -1.0)
        await net.ask("/ok", caller=caller)
        assert net.server.connections == 1, "it was looked at, and found fit"
        monkeypatch.setattr(connection, "IDLE_LIFE_S", -1.0)
        await net.ask("/ok", caller=caller)
        assert net.server.connections == 2
        caller._plain._pool._close_old()
        assert idle_connections(caller) == 0

    run_plain(scenario)


def test_the_oldest_idle_connection_makes_room(run_plain: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(max_idle=2, names={f"h{n}.test": ["127.0.0.1"] for n in range(4)})
        for n in range(4):
            assert (
                await net.ask(f"http://h{n}.test:{net.server.port}/ok", caller=caller)
            ).status == 200
        assert idle_connections(caller) == 2
        for n in (2, 3):
            await net.ask(f"http://h{n}.test:{net.server.port}/ok", caller=caller)
        assert net.server.connections == 4

    run_plain(scenario)


# --- addresses ---


def test_the_next_address_is_tried_when_one_refuses(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(
            names={
                "two.test": ["127.0.0.2", "::1", "127.0.0.1"],
                "none.test": ["127.0.0.2", "127.0.0.3"],
            }
        )
        reply = await net.ask(f"http://two.test:{net.server.port}/ok", caller=caller)
        assert (
            reply.status == 200
            and 0 < reply.timing.dns_ms <= reply.timing.connect_ms <= reply.timing.total_ms
        )
        reply = await net.ask(f"http://none.test:{net.server.port}/ok", caller=caller)
        assert (reply.kind, reply.error) == (
            "unreachable",
            f"connection refused by none.test:{net.server.port}",
        )

    run(scenario)


def test_a_silent_address_gives_way_to_the_next(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.2", net.server.port))
            full.listen(0)
            for _ in range(8):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            caller = net.caller(
                names={
                    "slow.test": ["127.0.0.2", "127.0.0.1"],
                    "mute.test": ["127.0.0.2", "127.0.0.3"],
                }
            )
            reply = await net.ask(f"http://slow.test:{net.server.port}/ok", caller=caller)
            assert reply.status == 200 and reply.timing.connect_ms >= connect.HEAD_START_S * 900
            url = f"http://mute.test:{net.server.port}/ok"
            reply = await net.ask(url, caller=caller, connect_timeout_us=400 * MS)
            assert (reply.kind, reply.error) == (
                "timeout",
                f"no connection to mute.test:{net.server.port} within 400ms",
            )

    run(scenario)


@pytest.mark.spec("X20")
def test_an_ipv6_address_is_called_by_its_number(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        heads: list[bytes] = []

        async def talk(reader: Any, writer: Any) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK)

        try:
            async with listening(talk, "::1") as url:
                assert (await net.ask(url + "/a")).body == b"ok"
                assert f"Host: {url[7:]}\r\n".encode() in heads[0]
        except OSError:
            pytest.skip("no IPv6 here")

    run(scenario)
