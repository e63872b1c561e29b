"""Redirects of the plain client, to itself and to libcurl."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ksana.ports.caller import Reply, Request
from tests.outbound.plain_target import MS, until


@pytest.mark.spec("X20", "T12")
def test_a_redirect_from_http_to_https_keeps_hops_and_deadline(
    run: Callable[..., None], certificate: tuple[Path, Path]
) -> None:
    key, cert = certificate

    async def scenario(net: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        async with type(net.server)().listening(context) as server:
            safe = f"https://target.test:{server.port}"
            caller = net.caller(ca_file=str(cert), names={"target.test": ["127.0.0.1"]})
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
    ("origin", "path"),
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
    run_once: Callable[..., None], origin: str, path: str
) -> None:
    async def scenario(net: Any) -> None:
        async def answer(reader: Any, writer: Any, **_: str) -> bool:
            return bool(
                await net.server._answer(
                    writer, 307, b"", f"Location: {origin.format(port=net.server.port)}"
                )
            )

        net.server.way_here = answer
        reply = await net.ask("/here", follow_redirects=1)
        assert reply.status == 200
        assert net.server.seen[-1].path == path

    run_once(scenario)
