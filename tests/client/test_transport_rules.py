"""The transport's rules without a server: what a request looks like, when a call is repeated and
how long it waits."""

import asyncio
import random
from typing import Any

import pytest

from ksana.client import transport as transports
from ksana.client.connection import HttpReply
from ksana.client.errors import (
    ApiError,
    ClientError,
    TransportError,
    from_answer,
)
from ksana.client.transport import MAX_RETRY_AFTER_SEC, CallBackoff, Transport
from tests.ground.jumping import loop_time, on_jumping_time

pytestmark = pytest.mark.spec("Q16")


@pytest.mark.parametrize("failures", [1, 2, 3, 4, 40, 2_000])
def test_pauses_double_up_to_a_ceiling_and_never_fall_under_a_quarter(failures: int) -> None:
    backoff = CallBackoff(first_sec=1.0, most_sec=6.0)
    ceiling = {1: 1.0, 2: 2.0, 3: 4.0}.get(failures, 6.0)
    pauses = [backoff.pause(failures) for _ in range(300)]
    assert ceiling / 4 <= min(pauses) < ceiling / 3
    assert ceiling * 0.9 < max(pauses) <= ceiling


def test_a_pause_is_as_long_as_the_server_asked_for_within_a_minute() -> None:
    backoff = CallBackoff(first_sec=1.0)
    assert backoff.pause(1, 30.0) == 30.0
    assert backoff.pause(1, 61.0) == MAX_RETRY_AFTER_SEC == 60.0
    assert 0.25 <= backoff.pause(1, 0.0) <= 1.0


@pytest.mark.parametrize(
    ("url", "host", "port", "has_tls", "prefix", "named"),
    [
        ("http://h", "h", 80, False, "", "h"),
        ("http://h:81/p/", "h", 81, False, "/p", "h:81"),
        ("http://h:81/p~/", "h", 81, False, "/p~", "h:81"),
        ("https://h", "h", 443, True, "", "h"),
        ("https://u:pw@h:8/", "h", 8, True, "", "h:8"),
    ],
)
def test_the_address_is_taken_apart(
    url: str, host: str, port: int, has_tls: bool, prefix: str, named: str
) -> None:
    one = Transport(url, api_key="k", headers={"X-A": "b"})
    assert (one._host, one._port, one._tls is not None) == (host, port, has_tls)
    assert one.base_url == url.removesuffix("/")
    assert one._request("GET", "/x", None, None) == (
        f"GET {prefix}/x HTTP/1.1\r\nHost: {named}\r\nAccept: application/json\r\n"
        "Authorization: Bearer k\r\nX-A: b\r\n\r\n"
    ).encode("latin-1")


@pytest.mark.parametrize("url", ["ftp://h", "http://", "h", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not an http"):
        Transport(url)


def test_a_request_is_framed_by_its_length() -> None:
    one = Transport("http://h")
    head = "Host: h\r\nAccept: application/json\r\n"
    assert one._request("POST", "/x", None, {"Idempotency-Key": "i"}) == (
        f"POST /x HTTP/1.1\r\n{head}Idempotency-Key: i\r\nContent-Length: 0\r\n\r\n"
    ).encode("latin-1")
    assert (
        one._request("PUT", "/x", "é".encode(), None)
        == (
            f"PUT /x HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
        ).encode("latin-1")
        + "é".encode()
    )


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/\x7f", "/\x00"])
def test_a_path_cannot_end_the_request_line(path: str) -> None:
    with pytest.raises(ValueError, match="request line"):
        Transport("http://h")._request("GET", path, None, None)


@pytest.mark.parametrize("header", [("a b", "x"), ("", "x"), ("a:", "x"), ("a", "x\r\ny: z")])
def test_a_header_cannot_begin_another(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        Transport("http://h")._request("GET", "/", None, dict([header]))


# Repeats


class Tries:
    """A transport whose tries are answered as told, on an event loop whose time is ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any, **how: Any) -> None:
        self.transport = Transport("http://h", backoff=CallBackoff(first_sec=1.0, **how))
        self.answers = list(answers)
        self.pauses: list[float] = []
        self.left: list[float] = []
        self.now = 100.0
        monkeypatch.setattr(self.transport, "_ask_once", self._ask_once)
        monkeypatch.setattr(transports.asyncio, "sleep", self._sleep)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        monkeypatch.setattr(random, "uniform", lambda low, high: high)

    async def _sleep(self, pause: float) -> None:
        self.pauses.append(pause)
        self.now += pause

    async def _ask_once(self, request: bytes, left_sec: float, is_poll: bool) -> HttpReply:
        self.left.append(left_sec)
        answer = self.answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        status, retry_after = answer if isinstance(answer, tuple) else (answer, None)
        return HttpReply(status, b"{}", retry_after, 0.0)

    async def call(self, deadline_sec: float = 60.0, **how: Any) -> tuple[int, int]:
        reply, unknown = await self.transport.call("POST", "/", deadline_sec=deadline_sec, **how)
        return reply.status, unknown


def lost(is_outcome_unknown: bool = True) -> TransportError:
    return TransportError("x", is_outcome_unknown=is_outcome_unknown)


async def test_a_call_is_repeated_with_longer_pauses_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Tries(monkeypatch, lost(), lost(False), 500, 299)
    assert await tries.call() == (299, 1)
    assert tries.pauses == [1.0, 2.0, 4.0]
    assert tries.left == [60.0, 59.0, 57.0, 53.0]


@pytest.mark.parametrize("status", [200, 204, 299])
async def test_only_a_2xx_is_an_answer(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    assert await Tries(monkeypatch, status).call() == (status, 0)


@pytest.mark.parametrize("status", [199, 300, 404, 409])
async def test_a_refusal_is_raised_at_once(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    tries = Tries(monkeypatch, status)
    with pytest.raises(ApiError) as refused:
        await tries.call()
    assert (refused.value.status, refused.value.unknown_tries) == (status, 0)
    assert tries.pauses == []


async def test_a_refusal_after_a_lost_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiError) as refused:
        await Tries(monkeypatch, lost(), lost(), 409).call()
    assert refused.value.unknown_tries == 2


async def test_an_outcome_once_unknown_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransportError) as failed:
        await Tries(monkeypatch, lost(), lost(False)).call(tries=2)
    assert (failed.value.is_outcome_unknown, failed.value.unknown_tries) == (True, 1)
    with pytest.raises(TransportError) as failed:
        await Tries(monkeypatch, lost(False), lost(False)).call(tries=2)
    assert (failed.value.is_outcome_unknown, failed.value.unknown_tries) == (False, 0)


async def test_a_call_that_must_not_be_made_twice_is_not_after_a_lost_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Tries(monkeypatch, lost(False), (503, "3"), lost(), 200)
    with pytest.raises(TransportError):
        await tries.call(is_repeatable=False)
    assert tries.pauses == [1.0, 3.0]


async def test_a_pause_that_is_asked_for_beyond_the_deadline_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Tries(monkeypatch, (503, "5"), 200)
    with pytest.raises(ApiError):
        await tries.call(deadline_sec=4.0)
    assert (tries.pauses, tries.left) == ([], [4.0])


def test_another_try_needs_a_little_time_of_its_own() -> None:
    one = Transport("http://h", backoff=CallBackoff(first_sec=0.001))
    busy = from_answer(503, b"", 0.02)
    assert one._pause_within(busy, 1, 0.04) == 0.02
    assert one._pause_within(busy, 1, 0.039) is None


@on_jumping_time
async def test_closing_lets_the_loop_turn_once_and_waits_for_nothing() -> None:
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    await Transport("http://h").close()
    assert (turns, loop_time()) == ([1], 0.0)


async def test_tries_are_bounded_by_the_call_or_by_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Tries(monkeypatch, *[lost()] * 9, tries=3)
    with pytest.raises(TransportError):
        await tries.call()
    assert len(tries.left) == 3
    tries = Tries(monkeypatch, *[lost()] * 9, tries=3)
    with pytest.raises(TransportError):
        await tries.call(tries=1)
    assert len(tries.left) == 1


@pytest.mark.parametrize(
    ("left_sec", "asked_sec", "pause"),
    [
        (10.0, None, 1.0),  # ours
        (0.8, None, 0.6),  # ours, cut short
        (1.0, None, 0.75),
        (1.01, None, 0.7575),  # it would end too late for another try
        (1.03, None, 1.0),
        (10.0, 4.0, 4.0),
        (4.0, 4.0, None),  # the server said when: not sooner
        (4.01, 4.0, None),
        (4.5, 4.0, 4.0),
        (0.9, 0.8, 0.8),
        (0.04, None, None),
        (0.08, None, 0.06),
        (2.02, 2.0, 2.0),
        (0.0, None, None),
        (-1.0, None, None),
    ],
)
async def test_a_pause_of_our_own_is_cut_short_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
    left_sec: float,
    asked_sec: float | None,
    pause: float | None,
) -> None:
    tries = Tries(monkeypatch)
    failure = lost() if asked_sec is None else from_answer(503, b"", asked_sec)
    found = tries.transport._pause_within(failure, 1, left_sec)
    assert found == (pause if pause is None else pytest.approx(pause))
