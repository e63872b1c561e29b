"""The plain lane's own dangers: kept connections that die, several addresses, hostile servers,
redirects to the other lane."""

import asyncio
import contextlib
import itertools
import random
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ksana.outbound.by_scheme import HttpCaller
from ksana.outbound.deadlines import SLOTS_PER_S, Deadlines, Timed
from ksana.outbound.plain import client, connect
from ksana.outbound.plain.call import read_wait
from ksana.outbound.plain.encode_request import find_route, write_letter
from ksana.ports.caller import Reply, Request
from tests.outbound.conftest import GONE

MS = 1000
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@contextlib.asynccontextmanager
async def listening(talk: Talk, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve each connection by a function, and end it after."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(*GONE, asyncio.LimitOverrunError):
                await talk(reader, writer)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, host, port)
    try:
        where = f"[{host}]" if ":" in host else host
        yield f"http://{where}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def used_curl(caller: HttpCaller) -> bool:
    return caller._curl is not None


def idle_wires(caller: HttpCaller) -> int:
    return len(caller._plain._idle)


async def until(fact: Callable[[], bool]) -> None:
    while not fact():
        await asyncio.sleep(0.002)


def test_a_setting_sends_plain_http_by_libcurl_too(run_plain: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(plain_http="libcurl")
        assert (await net.ask("/ok", caller=caller)).status == 200
        assert used_curl(caller) and idle_wires(caller) == 0

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
            assert idle_wires(caller) == 1
            said.set()
            await until(lambda: idle_wires(caller) == 0)
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
        monkeypatch.setattr(client, "_LOOK_FIRST_AFTER_S", -1.0)
        monkeypatch.setattr(client, "_LOOK_AFTER_S", -1.0)
        await net.ask("/ok", caller=caller)
        assert net.server.connections == 1, "it was looked at, and found fit"
        monkeypatch.setattr(client, "IDLE_LIFE_S", -1.0)
        await net.ask("/ok", caller=caller)
        assert net.server.connections == 2
        caller._plain._close_old()
        assert idle_wires(caller) == 0

    run_plain(scenario)


def test_the_oldest_idle_connection_makes_room(run_plain: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(max_idle=2, names={f"h{n}.test": ["127.0.0.1"] for n in range(4)})
        for n in range(4):
            assert (
                await net.ask(f"http://h{n}.test:{net.server.port}/ok", caller=caller)
            ).status == 200
        assert idle_wires(caller) == 2
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


# --- hostile or slow servers ---


@pytest.mark.parametrize("size", [1, 7, 100])
def test_an_answer_in_pieces_is_put_together(run_plain: Callable[..., None], size: int) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n3\r\nay!\r\n0\r\n\r\n"

    async def scenario(net: Any) -> None:
        async def talk(reader: Any, writer: Any) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for at in range(0, len(data), size):
                    writer.write(data[at : at + size])
                    await writer.drain()
                    await asyncio.sleep(0)

        async with listening(talk) as url:
            caller = net.caller()
            for _ in range(3):
                reply = await net.ask(url, caller=caller)
                assert (reply.status, reply.body) == (200, b"okay!")
            assert idle_wires(caller) == 1 and not used_curl(caller)

    run_plain(scenario)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, "Too large response headers"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000, "Too large response headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "not HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            "cut short after 3 bytes",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
            "Malformed encoding",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: br\r\n\r\n", "Unsolicited Transfer-Encoding (br)"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "cut short"),
    ],
)
def test_a_hostile_answer_costs_one_call_and_no_more(
    run_plain: Callable[..., None], data: bytes, words: str
) -> None:
    async def scenario(net: Any) -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )

        async def talk(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await writer.drain()

        async with listening(talk) as url:
            caller = net.caller()
            reply = await net.ask(url, caller=caller)
            assert reply.kind == "unreachable" and reply.status is None and words in reply.error
            assert (await net.ask("/ok", caller=caller)).status == 200
            assert caller.in_flight == 0 and idle_wires(caller) == 1 and not complaints

    run_plain(scenario)


def test_a_mistake_of_ours_costs_one_call_which_still_hears_of_it(
    run_plain: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(net: Any) -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )

        def fail(raw: bytes) -> str:
            raise RuntimeError("a bug")

        monkeypatch.setattr("ksana.outbound.plain.call.read_wait", fail)
        reply = await net.ask("/wait?after=5")
        assert (reply.kind, reply.error) == ("unreachable", "the answer cannot be read: a bug")
        assert len(complaints) == 1
        assert (await net.ask("/ok")).status == 200

    run_plain(scenario)


def test_a_large_request_to_a_slow_reader_arrives_whole(run: Callable[..., None]) -> None:
    body = bytes(range(256)) * 40_000

    async def scenario(net: Any) -> None:
        async def talk(reader: Any, writer: Any) -> None:
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.02)
                assert await reader.readexactly(len(body)) == body
                writer.write(OK)

        async with listening(talk) as url:
            caller = net.caller()
            for _ in range(2):
                assert (await net.ask(url, caller=caller, method="POST", body=body)).body == b"ok"

    run(scenario)


def test_an_answer_before_the_request_has_left_is_taken_and_the_connection_closed(
    run_plain: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        async def talk(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            await writer.drain()
            reader._transport.pause_reading()
            await asyncio.Event().wait()

        async with listening(talk) as url:
            caller = net.caller()
            reply = await net.ask(url, caller=caller, method="POST", body=b"x" * 30_000_000)
            assert (reply.status, reply.body, idle_wires(caller)) == (413, b"no", 0)

    run_plain(scenario)


def test_calls_can_be_aborted_while_they_dial(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(8):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            told: list[Reply] = []
            caller = net.caller()
            call = caller.call(
                Request("GET", f"http://127.0.0.1:{full.getsockname()[1]}/"), told.append
            )
            await asyncio.sleep(0)
            call.abort()
            call.abort()
            await until(lambda: bool(told))
            assert [reply.kind for reply in told] == ["aborted"] and caller.in_flight == 0

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_servers_do_every_call_is_told_once_and_nothing_is_left(
    run_plain: Callable[..., None], seed: int
) -> None:
    chance = random.Random(seed)
    ways = [
        b"",
        b"\0\xff" * 99,
        OK,
        OK + b"more",
        OK[:-1],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n",
    ]
    total = 400

    async def scenario(net: Any) -> None:
        complaints: list[Any] = []
        told: dict[int, int] = {}
        over = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )

        async def talk(reader: Any, writer: Any) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(chance.choice(ways))
                await writer.drain()
                fate = chance.random()
                if fate < 0.15:
                    writer.transport.abort()
                if fate < 0.3:
                    return

        async with listening(talk) as url:
            caller = net.caller(
                max_idle=5, names={"a.test": ["127.0.0.2", "127.0.0.1"], "b.test": ["127.0.0.1"]}
            )
            started = itertools.count()

            def start() -> None:
                number, host = (
                    next(started),
                    chance.choice(["127.0.0.1", "127.0.0.2", "a.test", "b.test"]),
                )

                def done(reply: Reply) -> None:
                    told[number] = told.get(number, 0) + 1
                    if number + 40 < total:
                        start()
                    elif len(told) == total:
                        over.set()

                request = Request(
                    "POST",
                    url.replace("127.0.0.1", host),
                    (),
                    b"z" * chance.choice([0, 9, 200_000]),
                    timeout_us=chance.choice([30, 60, 2000]) * MS,
                    follow_redirects=2,
                )
                call = caller.call(request, done)
                if chance.random() < 0.1:
                    asyncio.get_running_loop().call_later(chance.random() / 100, call.abort)

            for _ in range(40):
                start()
            await asyncio.wait_for(over.wait(), 20)
            assert set(told.values()) == {1} and caller.in_flight == 0 and not complaints
            assert (
                idle_wires(caller)
                == sum(len(place.idle) for place in caller._plain._places.values())
                <= 5
            )

    run_plain(scenario)


# --- deadlines ---


class Guest(Timed):
    __slots__ = ("due_s", "told_s")

    def __init__(self, due_s: float) -> None:
        self.slot = 0
        self.due_s = due_s
        self.told_s = 0.0


@pytest.mark.spec("T12")
def test_a_deadline_is_never_early_and_all_are_told(run_plain: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        told: list[Guest] = []

        def on_due(guest: Guest) -> None:
            guest.told_s = time.monotonic()
            told.append(guest)

        deadlines: Deadlines[Guest] = Deadlines(asyncio.get_running_loop(), on_due)
        now_s = time.monotonic()
        guests = [Guest(now_s + n * 0.0013) for n in range(60, 0, -1)]
        gone = Guest(now_s + 0.02)
        for guest in (*guests, gone):
            deadlines.add(guest, guest.due_s)
        deadlines.remove(gone)
        deadlines.remove(gone)
        assert len(deadlines) == 60
        await until(lambda: len(told) == 60)
        assert all(guest.told_s >= guest.due_s for guest in guests) and gone.told_s == 0.0
        assert sorted(told, key=lambda guest: int(guest.due_s * SLOTS_PER_S)) == told
        assert len(deadlines) == 0
        deadlines.close()

    run_plain(scenario)


# --- from one lane to the other ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    try:
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
                "-keyout",
                key,
                "-out",
                cert,
                "-subj",
                "/CN=safe.test",
                "-addext",
                "subjectAltName=DNS:safe.test",
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    return key, cert


@pytest.mark.spec("X20", "T12")
def test_a_redirect_from_http_to_https_keeps_hops_and_deadline(
    run: Callable[..., None], certificate: tuple[Path, Path]
) -> None:
    key, cert = certificate

    async def scenario(net: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        async with type(net.server)().listening(context) as server:
            safe = f"https://safe.test:{server.port}"
            caller = net.caller(ca_file=str(cert), names={"safe.test": ["127.0.0.1"]})
            secret = (("Authorization", "s"), ("X-Keep", "1"))
            reply = await net.ask(
                f"/to?url={safe}/ok", caller=caller, follow_redirects=1, headers=secret
            )
            assert reply.status == 200 and 0 < reply.timing.tls_ms <= reply.timing.total_ms
            assert (
                "authorization" not in server.seen[0].headers
                and server.seen[0].headers["x-keep"] == "1"
            )
            reply = await net.ask(f"/to?url={safe}/loop", caller=caller, follow_redirects=3)
            assert reply.status == 302 and len(server.seen) == 1 + 3
            reply = await net.ask(
                f"/to?url={safe}/hang", caller=caller, follow_redirects=1, timeout_us=300 * MS
            )
            assert (
                reply.kind == "timeout"
                and "within 300ms" in reply.error
                and reply.timing.total_ms >= 290
            )
            told: list[Reply] = []
            server.arrived.clear()
            call = caller.call(
                Request("GET", f"{net.server.url}/to?url={safe}/hang", follow_redirects=1),
                told.append,
            )
            await server.arrived.wait()
            assert caller.in_flight == 1
            call.abort()
            await until(lambda: bool(told))
            assert [reply.kind for reply in told] == ["aborted"] and caller.in_flight == 0

    run(scenario)


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/ok?a=1", "/ok?a=1"),
        ("ok", "/ok"),
        ("/x/../ok", "/ok"),
        ("/ok#part", "/ok"),
        ("/ok?a b", "/ok?a+b"),
        ("//127.0.0.1:{port}/ok", "/ok"),
        ("HTTP://127.0.0.1:{port}/ok", "/ok"),
    ],
)
def test_a_location_is_resolved_as_libcurl_does(
    run_once: Callable[..., None], place: str, path: str
) -> None:
    async def scenario(net: Any) -> None:
        async def answer(reader: Any, writer: Any, **_: str) -> bool:
            return bool(
                await net.server._answer(
                    writer, 307, b"", f"Location: {place.format(port=net.server.port)}"
                )
            )

        net.server.way_here = answer
        reply = await net.ask("/here", follow_redirects=1)
        assert reply.status == 200
        assert net.server.seen[-1].path == path

    run_once(scenario)


# --- what is sent ---


@pytest.mark.parametrize(
    ("url", "start"),
    [
        ("http://a.test", "GET / HTTP/1.1\r\nHost: a.test\r\n"),
        ("http://A.test:80?q=%c3#f", "GET /?q=%c3 HTTP/1.1\r\nHost: A.test\r\n"),
        ("http://a.test:8080/%c3/x?/../y", "GET /%C3/x?/../y HTTP/1.1\r\nHost: a.test:8080\r\n"),
        ("http://a.test./é", "GET /%C3%A9 HTTP/1.1\r\nHost: a.test\r\n"),
        ("http://[::1]:81/", "GET / HTTP/1.1\r\nHost: [::1]:81\r\n"),
        ("HTTP://127.0.0.1:/x//y", "GET /x//y HTTP/1.1\r\nHost: 127.0.0.1\r\n"),
    ],
)
def test_the_first_lines_are_those_that_libcurl_sends(url: str, start: str) -> None:
    route = find_route(url)
    assert route is not None
    assert (
        write_letter(route, Request("GET", url))
        == (start + "User-Agent: ksana\r\nAccept: */*\r\n\r\n").encode()
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://a.test/",
        "http://a.test/x/../y",
        "http://a.test/%2e%2E/",
        "http://a.test/.",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://[0:0::1]/",
        "http://08.0.0.1/",
    ],
)
def test_what_libcurl_would_rewrite_is_left_to_libcurl(url: str) -> None:
    assert find_route(url) is None


@pytest.mark.parametrize("name", ["Expect", "TE", "connection", "Host", "Transfer-Encoding"])
def test_a_header_that_changes_how_a_request_is_sent_is_left_to_libcurl(name: str) -> None:
    route = find_route("http://a.test/")
    assert (
        route is not None
        and write_letter(route, Request("GET", "http://a.test/", ((name, "x"),))) is None
    )


@pytest.mark.spec("T18")
@pytest.mark.parametrize(
    "pair", [("X-A", "a\r\nX-Evil: 1"), ("X\r\nY", "z"), ("X-A", "\x7f"), ("X-%s", "a\0")]
)
def test_no_control_byte_is_written_into_a_request(pair: tuple[str, str]) -> None:
    route = find_route("http://a.test/")
    assert route is not None
    with pytest.raises(ValueError, match="control character"):
        write_letter(route, Request("GET", "http://a.test/", (pair,)))


def test_a_percent_sign_in_a_header_is_sent_as_it_is() -> None:
    route = find_route("http://a.test/")
    assert route is not None
    sent = write_letter(
        route,
        Request(
            "PUT",
            "http://a.test/",
            (("X-%s", "100%d"), ("Accept", "x"), ("user-agent", "y")),
            b"%s",
        ),
    )
    assert (
        sent
        == b"PUT / HTTP/1.1\r\nHost: a.test\r\nX-%s: 100%d\r\nAccept: x\r\nuser-agent: y\r\nContent-Length: 2\r\n\r\n%s"
    )


@pytest.mark.parametrize(
    ("raw", "wait"),
    [
        (b"5", "5"),
        (b"5x", "5"),
        (b"0", None),
        (b"-5", None),
        (b"+5", None),
        (b"99999999999999999999", None),
        (b"100000", "21600"),
        (b"Fri, 31 Dec 2100 23:59:59 GMT", "21600"),
        (b"Fri, 31 Dec 1999 23:59:59 GMT", None),
        (b"soon", None),
        (b"\xff", None),
    ],
)
def test_a_wait_is_read_as_libcurl_reads_it(raw: bytes, wait: str | None) -> None:
    assert read_wait(raw) == wait
