"""What is sent and what is made of the answer, on both event loops."""

import asyncio
import gzip
from collections.abc import Callable
from typing import Any

import pytest

from ksana.outbound.curl.caller import CurlCaller
from ksana.ports.caller import Reply, Request


@pytest.mark.spec("T10", "T11")
def test_an_answer_comes_back_whole_with_its_timing(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask(
            "/ok?size=11",
            method="POST",
            body=b'{"a":1}',
            headers=(("Content-Type", "application/json"),),
        )
        assert (reply.kind, reply.status, reply.body, reply.truncated) == (
            "answered",
            200,
            b"k" * 11,
            False,
        )
        assert reply.error is None and reply.retry_after is None
        assert 0 < reply.timing.connect_ms <= reply.timing.first_byte_ms <= reply.timing.total_ms
        seen = net.server.seen[0]
        assert (seen.method, seen.path, seen.body) == ("POST", "/ok?size=11", b'{"a":1}')
        assert seen.headers["content-type"] == "application/json"
        assert "expect" not in seen.headers and "accept-encoding" not in seen.headers

    run(scenario)


def test_each_method_is_sent_as_itself_on_one_kept_connection(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        sent = [
            ("GET", None),
            ("POST", b"x"),
            ("HEAD", None),
            ("PUT", b"y"),
            ("DELETE", None),
            ("PATCH", b""),
            ("POST", None),
            ("GET", None),
            ("GET", b"with body"),
            ("DELETE", b"z"),
            ("PUT", None),
        ]
        for method, body in sent:
            reply = await net.ask("/ok", method=method, body=body)
            assert reply.status == 200
            assert reply.body == (b"" if method == "HEAD" else b"kk")
        assert [(seen.method, seen.body) for seen in net.server.seen] == [
            (method, body or b"") for method, body in sent
        ]
        assert all("content-type" not in seen.headers for seen in net.server.seen)
        assert net.server.connections == 1

    run(scenario)


def test_headers_travel_as_given_even_empty_or_beyond_ascii(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        await net.ask(
            "/ok",
            headers=(("X-Empty", ""), ("X-Name", "刹那"), ("X-Talks-Of", "content-type")),
            body=b"b",
        )
        seen = net.server.seen[0].headers
        assert (seen["x-empty"], seen["x-name"], seen["x-talks-of"]) == ("", "刹那", "content-type")
        assert "content-type" not in seen

    run_once(scenario)


@pytest.mark.spec("T18")
@pytest.mark.parametrize("bad", ["a\r\nX-Evil: 1", "a\nb", "a\x00b"])
def test_a_control_byte_in_a_header_never_leaves(run_once: Callable[..., None], bad: str) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask("/ok", headers=(("X-A", bad),))
        assert reply.kind == "refused" and "control character" in reply.error
        assert net.server.connections == 0

    run_once(scenario)


def test_a_url_beyond_ascii_is_sent_percent_encoded(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        assert (await net.ask("/ok?size=1&名=刹那")).status == 200
        assert net.server.seen[0].path == "/ok?size=1&%E5%90%8D=%E5%88%B9%E9%82%A3"

    run_once(scenario)


@pytest.mark.spec("X13")
def test_a_long_answer_is_cut_at_the_limit_and_marked(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask("/ok?size=200000", max_body=1000)
        assert (reply.kind, len(reply.body), reply.truncated) == ("answered", 1000, True)
        exact = await net.ask("/ok?size=1000", max_body=1000)
        assert (len(exact.body), exact.truncated) == (1000, False)
        none = await net.ask("/ok?size=5", max_body=0)
        assert (none.body, none.truncated) == (b"", True)
        whole = await net.ask("/ok?size=300000", max_body=None)
        assert (len(whole.body), whole.truncated) == (300_000, False)
        assert net.server.connections == 1, "the rest was read, so the connection could be kept"

    run(scenario)


@pytest.mark.fault("F54")
@pytest.mark.spec("X13")
@pytest.mark.parametrize("max_body", [100, None])
def test_an_endless_answer_ends_at_the_hard_cap_as_a_truncated_answer(
    run: Callable[..., None], max_body: int | None
) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(hard_cap=300_000)
        reply = await net.ask("/endless", caller=caller, max_body=max_body)
        assert (reply.kind, reply.status, reply.truncated) == ("answered", 200, True)
        assert len(reply.body) == (max_body or 300_000)

    run(scenario)


def test_a_compressed_body_is_kept_as_it_came(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask("/bomb")
        assert reply.body == b"\x1f\x8bnot really"
        with pytest.raises(gzip.BadGzipFile):
            gzip.decompress(b"not really")

    run_once(scenario)


@pytest.mark.spec("T11")
def test_retry_after_is_told_in_seconds(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        assert (await net.ask("/wait?after=120")).retry_after == "120"
        dated = await net.ask("/wait?after=Fri,%2031%20Dec%202100%2023:59:59%20GMT")
        assert dated.retry_after is not None and int(dated.retry_after) > 3600
        assert (await net.ask("/wait?after=nonsense")).retry_after is None

    run_once(scenario)


def test_many_calls_at_once_all_end_and_handles_are_used_again(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller()
        for _ in range(3):
            replies = await asyncio.gather(*(net.ask("/ok", caller=caller) for _ in range(100)))
            assert all(reply.status == 200 for reply in replies)
        assert net.server.connections <= 100
        assert caller.in_flight == 0

    run(scenario)


def test_connections_kept_are_bounded(run_once: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(max_idle=2)
        await asyncio.gather(*(net.ask("/ok", caller=caller) for _ in range(20)))
        before = net.server.connections
        await asyncio.gather(*(net.ask("/ok", caller=caller) for _ in range(20)))
        assert net.server.connections >= before + 18

    run_once(scenario)


@pytest.mark.spec("X20")
def test_proxies_of_the_environment_are_ignored(
    run_once: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def scenario(net: Any) -> None:
        assert (await net.ask("/ok")).status == 200

    run_once(scenario)


def test_done_is_never_called_from_inside_call(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        caller: CurlCaller = net.caller()
        told: list[Reply] = []
        for url in (
            "http://169.254.169.254/",
            "ftp://127.0.0.1/",
            "http://127.0.0.1:9/",
            "nonsense",
        ):
            caller.call(Request("GET", url), told.append)
            assert told == []
        caller.close()
        caller.call(Request("GET", net.server.url + "/ok"), told.append)
        before = len(told)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # Whether the refused and the unreachable one were still under way when it was closed is the
        # client's matter.
        assert before <= 2 and len(told) == 5
        assert told[-1].kind == "aborted"

    run(scenario)


def test_a_listener_that_fails_does_not_cost_the_others_their_answer(
    run: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        caller: CurlCaller = net.caller()
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )

        def fail(reply: Reply) -> None:
            raise RuntimeError("a bug of the listener")

        caller.call(Request("GET", net.server.url + "/ok"), fail)
        replies = await asyncio.gather(*(net.ask("/ok", caller=caller) for _ in range(5)))
        assert [reply.status for reply in replies] == [200] * 5
        assert str(complaints[0]["exception"]) == "a bug of the listener"

    run(scenario)
