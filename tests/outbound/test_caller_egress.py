"""The egress border as seen from the network: what is forbidden is never connected to, on any hop,
by any spelling."""

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from ksana.outbound.egress import EgressPolicy

OPENED: list[int] = []


def _note_sockets(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.__new__":
        OPENED.append(arguments[1])


sys.addaudithook(_note_sockets)  # cannot be removed; it only counts


@pytest.mark.spec("X20")
@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "0xa9.0xfe.0xa9.0xfe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "0xA9FEA9FE",
        "0.0.0.0",
        "0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "100.100.100.200",
        "192.0.0.192",
        "[::]",
        "[fe80::1]",
        "[ff02::1]",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[::169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::]",
        "[2001:0:4136:e378:8000:63bf:5601:5601]",
    ],
)
def test_a_forbidden_address_is_refused_in_every_spelling_before_a_socket_exists(
    run_once: Callable[..., None], host: str
) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller()
        before = len(OPENED)
        reply = await net.ask(f"http://{host}/latest/meta-data/", caller=caller)
        assert reply.kind == "refused" and reply.error.startswith("not called: "), reply
        assert "\n" not in reply.error
        assert len(OPENED) == before

    run_once(scenario)


@pytest.mark.spec("X20")
def test_a_name_is_judged_by_what_it_resolves_to(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        port = net.server.port
        caller = net.caller(
            names={
                "metadata.test": ["169.254.169.254"],
                "mixed.test": ["127.0.0.1", "169.254.169.254"],
                "good.test": ["127.0.0.1"],
            }
        )
        before = len(OPENED)
        reply = await net.ask("http://metadata.test/", caller=caller)
        assert (reply.kind, reply.error) == (
            "refused",
            "not called: 169.254.169.254 is a metadata address",
        )
        mixed = await net.ask(f"http://mixed.test:{port}/ok", caller=caller)
        assert mixed.kind == "refused"
        assert len(OPENED) == before and net.server.connections == 0
        assert (await net.ask(f"http://good.test:{port}/ok", caller=caller)).status == 200

    run(scenario)


@pytest.mark.spec("X20")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "017700000001",
        "127.1",
        "localhost",
        "[::ffff:127.0.0.1]",
    ],
)
def test_a_denied_range_is_closed_in_every_spelling(
    run_once: Callable[..., None], host: str
) -> None:
    async def scenario(net: Any) -> None:
        closed = net.caller(EgressPolicy(deny=["127.0.0.0/8", "::1"]))
        reply = await net.ask(f"http://{host}:{net.server.port}/ok", caller=closed)
        assert reply.kind == "refused" and "denied by the egress rules" in reply.error
        assert net.server.connections == 0

    run_once(scenario)


def test_numeric_spellings_of_an_open_address_are_called(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        for host in ("2130706433", "0x7f.1"):
            assert (await net.ask(f"http://{host}:{net.server.port}/ok")).status == 200

    run_once(scenario)


@pytest.mark.spec("X20")
def test_our_own_database_is_no_target_even_where_loopback_is_open(
    run_once: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        own = net.caller(EgressPolicy(own=[("localhost", net.server.port)]))
        for host in ("127.0.0.1", "127.0.0.2", "localhost"):
            reply = await net.ask(f"http://{host}:{net.server.port}/ok", caller=own)
            assert reply.kind == "refused" and ("own" in reply.error or "itself" in reply.error)
        assert net.server.connections == 0

    run_once(scenario)


def test_a_host_allowed_by_name_does_not_lend_its_connection_to_another_name(
    run_once: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        port = net.server.port
        policy = EgressPolicy(allow=["inside.test"], deny=["private"])
        caller = net.caller(
            policy, names={"inside.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}
        )
        assert (await net.ask(f"http://inside.test:{port}/ok", caller=caller)).status == 200
        for host in ("other.test", "127.0.0.1"):
            assert (await net.ask(f"http://{host}:{port}/ok", caller=caller)).kind == "refused"
        assert (await net.ask(f"http://inside.test:{port}/ok", caller=caller)).status == 200
        assert net.server.connections == 1

    run_once(scenario)


@pytest.mark.spec("X20")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "http://user:pw@127.0.0.1/",
        "http://a b/",
        "",
    ],
)
def test_only_plain_http_urls_are_called(run_once: Callable[..., None], url: str) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask(url)
        assert reply.kind == "refused" and reply.error

    run_once(scenario)


@pytest.mark.spec("X20")
def test_no_connect_reaches_the_kernel(client_kind: str) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    script = """
    import asyncio
    from tests.outbound.conftest import CLIENTS
    from ksana.ports.caller import Request

    async def main():
        caller = CLIENTS[KIND](look_up=lambda host: ["169.254.169.254"])
        for url in (
            "http://metadata.test/", "http://2852039166/",
            "http://[::ffff:169.254.169.254]/", "http://127.0.0.1:9/",
        ):
            waiter = asyncio.get_running_loop().create_future()
            caller.call(Request("GET", url), waiter.set_result)
            print((await waiter).kind)
        caller.close()

    asyncio.run(main())
    """
    script = textwrap.dedent(script).replace("KIND]", f"{client_kind!r}]")
    made = subprocess.run(
        ["strace", "-f", "-e", "trace=connect,sendto", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "PTRACE" in made.stderr or "not permitted" in made.stderr:
        pytest.skip("strace may not trace here")
    assert made.stdout.split() == ["refused", "refused", "refused", "unreachable"], made.stderr
    assert 'htons(9), sin_addr=inet_addr("127.0.0.1")' in made.stderr, (
        "the trace sees what does connect"
    )
    assert "169.254" not in made.stderr


# --- redirects ---


def test_redirects_are_not_followed_unless_asked(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask("/to?url=/ok")
        assert (reply.kind, reply.status, reply.body) == ("answered", 302, b"moved")
        assert len(net.server.seen) == 1

    run(scenario)


@pytest.mark.spec("X20")
@pytest.mark.parametrize(
    ("status", "method", "after"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
        (301, "PUT", "PUT"),
        (303, "PUT", "GET"),
        (302, "HEAD", "HEAD"),
        (303, "HEAD", "HEAD"),
        (307, "GET", "GET"),
    ],
)
def test_a_redirect_changes_the_method_as_browsers_do(
    run_once: Callable[..., None], status: int, method: str, after: str
) -> None:
    async def scenario(net: Any) -> None:
        body = b"payload" if method in ("POST", "PUT") else None
        headers = (
            ("Content-Type", "text/plain"),
            ("X-Ksana-Run-Id", "r"),
            ("Authorization", "secret"),
        )
        reply = await net.ask(
            f"/to?status={status}&url=/ok",
            method=method,
            body=body,
            headers=headers,
            follow_redirects=1,
        )
        assert reply.status == 200
        last = net.server.seen[-1]
        assert (last.method, last.path, last.body) == (
            after,
            "/ok",
            body if after == method and body else b"",
        )
        assert ("content-type" in last.headers) == (after == method)
        assert last.headers["x-ksana-run-id"] == "r" and last.headers["authorization"] == "secret"

    run_once(scenario)


@pytest.mark.spec("X20")
def test_credentials_do_not_follow_to_another_host(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        secrets = (
            ("Authorization", "Bearer s"),
            ("Cookie", "c=1"),
            ("x-api-key", "k"),
            ("Proxy-Authorization", "p"),
        )
        url = f"/to?status=307&url=http://other.test:{net.server.port}/ok"
        caller = net.caller(names={"other.test": ["127.0.0.1"]})
        reply = await net.ask(
            url, caller=caller, headers=(*secrets, ("X-Keep", "1")), follow_redirects=3
        )
        assert reply.status == 200
        first, last = net.server.seen
        assert {"authorization", "cookie", "x-api-key"} <= first.headers.keys()
        assert (
            not {"authorization", "cookie", "x-api-key", "proxy-authorization"}
            & last.headers.keys()
        )
        assert (
            last.headers["x-keep"] == "1"
            and last.headers["host"] == f"other.test:{net.server.port}"
        )

    run(scenario)


@pytest.mark.spec("X20")
@pytest.mark.parametrize(
    "origin",
    [
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "http://[::ffff:a9fe:a9fe]/",
        "ftp://127.0.0.1/",
    ],
)
def test_every_hop_is_judged(run_once: Callable[..., None], origin: str) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask(f"/to?url={origin}", follow_redirects=5)
        assert reply.kind == "refused" and reply.status is None and reply.error
        assert len(net.server.seen) == 1

    run_once(scenario)


@pytest.mark.spec("X20")
@pytest.mark.parametrize(("asked", "hops"), [(0, 1), (2, 3), (5, 6), (50, 6)])
def test_a_redirect_loop_ends_after_the_hops_allowed(
    run_once: Callable[..., None], asked: int, hops: int
) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask("/loop", follow_redirects=asked)
        assert (reply.kind, reply.status) == ("answered", 302)
        assert len(net.server.seen) == hops

    run_once(scenario)


@pytest.mark.spec("T12")
def test_the_deadline_covers_all_hops_together(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask("/to?url=/hang", follow_redirects=1, timeout_us=300_000)
        assert reply.kind == "timeout" and "within 300ms" in reply.error
        assert 290 <= reply.timing.total_ms < 3000
        assert [seen.path for seen in net.server.seen] == ["/to?url=/hang", "/hang"]

    run(scenario)
