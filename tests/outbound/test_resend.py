"""How often a request is sent inside one attempt: the target and the reply count the same."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ksana.outbound.egress import EgressPolicy
from ksana.ports.caller import Reply, Request
from tests.ground.background import stop_listening
from tests.outbound.conftest import GONE

MS = 1000
WARM = 4
REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")
ONCE = ("POST", "PATCH", "OPTIONS")


class Target:
    """Answers each connection's first request, if it is for /warm; ends the connection without an
    answer at any other request on a kept connection."""

    def __init__(self, *, answers_new: bool) -> None:
        self.answers_new = answers_new
        self.seen: list[str] = []
        self.url = ""
        self._warming = 0
        self._all_warm = asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["Target"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        self.url = f"https://target.test:{port}" if tls else f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            await stop_listening(server)

    async def warm(self, net: Any, caller: Any) -> None:
        """Leave the caller with several kept connections."""
        self._warming, self._all_warm = 0, asyncio.Event()
        replies = await asyncio.gather(
            *(net.ask(f"{self.url}/warm", caller=caller) for _ in range(WARM))
        )
        assert all(reply.status == 200 and reply.sends == 1 for reply in replies)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_kept = False
        with contextlib.suppress(*GONE):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = head.partition("content-length: ")[2].partition("\r")[0]
                await reader.readexactly(int(length or 0))
                if "/warm" in head:
                    self._warming += 1
                    if self._warming == WARM:
                        self._all_warm.set()
                    await self._all_warm.wait()
                else:
                    self.seen.append(head.partition(" ")[0].upper())
                    if is_kept or not self.answers_new:
                        break
                is_kept = True
                body = b"" if head.startswith("head") else b"ok"
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + body)
        writer.close()


@pytest.mark.spec("C10")
@pytest.mark.parametrize("body", [b"{}", b"x" * 300_000], ids=["short", "long"])
@pytest.mark.parametrize("method", REPEATABLE)
def test_a_repeatable_request_is_sent_again_once_on_a_new_connection_and_says_so(
    run: Callable[..., None], method: str, body: bytes
) -> None:
    async def scenario(net: Any) -> None:
        async with Target(answers_new=True).listening() as target:
            caller = net.caller()
            await target.warm(net, caller)
            sent = body if method == "PUT" else None
            reply = await net.ask(f"{target.url}/x", caller=caller, method=method, body=sent)
            assert (reply.kind, reply.status, reply.sends) == ("answered", 200, 2)
            assert target.seen == [method] * 2

    run(scenario)


@pytest.mark.spec("C10")
@pytest.mark.parametrize("method", REPEATABLE)
def test_a_repeatable_request_is_not_sent_a_third_time(
    run_once: Callable[..., None], method: str
) -> None:
    async def scenario(net: Any) -> None:
        async with Target(answers_new=False).listening() as target:
            caller = net.caller()
            await target.warm(net, caller)
            reply = await net.ask(f"{target.url}/x", caller=caller, method=method)
            assert (reply.kind, reply.sends) == ("unreachable", 2)
            assert target.seen == [method] * 2

    run_once(scenario)


@pytest.mark.spec("C10")
@pytest.mark.parametrize(
    "body",
    [b'{"amount":1}', b"x" * 300_000, None],
    ids=["with a body", "with a long one", "without"],
)
@pytest.mark.parametrize("method", ONCE)
def test_a_request_that_is_not_repeatable_is_sent_once(
    run: Callable[..., None], method: str, body: bytes | None
) -> None:
    async def scenario(net: Any) -> None:
        async with Target(answers_new=True).listening() as target:
            caller = net.caller()
            sends = 0
            for _ in range(3):
                await target.warm(net, caller)
                reply = await net.ask(f"{target.url}/x", caller=caller, method=method, body=body)
                assert reply.kind == "unreachable" and reply.error is not None
                assert reply.error.endswith("closed the connection without an answer")
                sends += reply.sends
            assert sends == 3 and target.seen == [method] * 3

    run(scenario)


@pytest.mark.spec("C10", "C23")
def test_a_request_that_may_not_be_sent_again_is_sent_once_whatever_its_method(
    run_once: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        async with Target(answers_new=False).listening() as target:
            caller = net.caller()
            await target.warm(net, caller)
            reply = await net.ask(f"{target.url}/x", caller=caller, may_resend=False)
            assert (reply.kind, reply.sends, target.seen) == ("unreachable", 1, ["GET"])

    run_once(scenario)


@pytest.mark.spec("C10")
@pytest.mark.parametrize(("method", "sends"), [("GET", 2), ("POST", 1)])
def test_the_same_holds_over_tls(
    run_once: Callable[..., None], certificate: tuple[Path, Path], method: str, sends: int
) -> None:
    key, cert = certificate

    async def scenario(net: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        async with Target(answers_new=True).listening(context) as target:
            caller = net.caller(ca_file=str(cert), names={"target.test": ["127.0.0.1"]})
            await target.warm(net, caller)
            reply = await net.ask(f"{target.url}/x", caller=caller, method=method)
            assert reply.sends == sends == len(target.seen)

    run_once(scenario)


@pytest.mark.spec("C10", "C23")
def test_a_request_of_which_nothing_was_written_counts_no_send(
    run_once: Callable[..., None], certificate: tuple[Path, Path]
) -> None:
    key, cert = certificate

    async def scenario(net: Any) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            refused = await net.ask(f"http://127.0.0.1:{unused.getsockname()[1]}/", method="POST")
        assert (refused.kind, refused.sends) == ("unreachable", 0)
        unknown = await net.ask("http://no-such-name.invalid/")
        assert (unknown.kind, unknown.sends) == ("unreachable", 0)
        strict = net.caller(EgressPolicy(deny=["127.0.0.1"]))
        forbidden = await net.ask("/ok", caller=strict)
        assert (forbidden.kind, forbidden.sends) == ("refused", 0)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        async with Target(answers_new=True).listening(context) as target:
            doubting = net.caller(names={"target.test": ["127.0.0.1"]})
            untrusted = await net.ask(f"{target.url}/x", caller=doubting, method="POST")
            assert (untrusted.kind, untrusted.sends, target.seen) == ("unreachable", 0, [])
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            with contextlib.ExitStack() as stack:
                for _ in range(4):  # the kernel takes no more for it, and does not say so
                    filler = stack.enter_context(socket.socket())
                    filler.setblocking(False)
                    filler.connect_ex(full.getsockname())
                url = f"http://127.0.0.1:{full.getsockname()[1]}/"
                hanging = await net.ask(url, connect_timeout_us=300 * MS)
        assert (hanging.kind, hanging.sends) == ("timeout", 0)

    run_once(scenario)


@pytest.mark.spec("C10", "C23")
def test_a_request_that_was_written_counts_a_send_however_it_ends(
    run_once: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        late = await net.ask("/hang", timeout_us=200 * MS)
        assert (late.kind, late.sends) == ("timeout", 1)
        reset = await net.ask("/reset", method="POST", body=b"x")
        assert (reset.kind, reset.sends) == ("unreachable", 1)
        for end in ("abort", "close"):
            caller = net.caller()
            waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            net.server.arrived.clear()
            call = caller.call(Request("POST", f"{net.server.url}/hang"), waiter.set_result)
            await net.server.arrived.wait()
            call.abort() if end == "abort" else caller.close()
            ended = await waiter
            assert (ended.kind, ended.sends) == ("aborted", 1)

    run_once(scenario)


@pytest.mark.spec("C10")
def test_of_several_hops_the_one_sent_most_often_counts(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}/"
            first = await net.ask(f"/to?url={nowhere}", follow_redirects=1)
        assert (first.kind, first.sends) == ("unreachable", 1)
        async with Target(answers_new=True).listening() as target:
            caller = net.caller()
            await target.warm(net, caller)
            both = await net.ask(f"/to?url={target.url}/x", caller=caller, follow_redirects=1)
            assert (both.status, both.sends, target.seen) == (200, 2, ["GET"] * 2)

    run_once(scenario)
