"""The transport's connections without a server: which are used again, who waits for one."""

import asyncio
import ssl
from typing import Any

import pytest

from ksana.client.connection import HttpReply
from ksana.client.errors import (
    DeadlineError,
    TransportError,
)
from ksana.client.transport import Transport

pytestmark = pytest.mark.spec("Q16")


class FakeConnection:
    def __init__(self, idle_since: float = 0.0, is_open: bool = True) -> None:
        self.idle_since = idle_since
        self.is_open = is_open
        self.asked: list[float] = []

    def close(self) -> None:
        self.is_open = False

    async def ask(self, request: bytes, within_sec: float) -> HttpReply:
        self.asked.append(within_sec)
        return HttpReply(200, b"", None, 0.0)


async def test_a_connection_is_used_again_while_it_is_open_and_not_idle_too_long() -> None:
    one = Transport("http://h", idle_sec=4.0)
    young, old, gone = FakeConnection(7.0), FakeConnection(6.0), FakeConnection(9.0, False)
    one._idle = [young, old, gone]  # type: ignore[list-item]
    assert one._find_idle(10.0) is young
    assert not old.is_open  # idle for exactly four seconds: the server may be closing it
    assert one._find_idle(10.0) is None


async def test_a_free_connection_is_kept_and_a_closed_client_keeps_none() -> None:
    one = Transport("http://h")
    there = FakeConnection(asyncio.get_running_loop().time())
    one._idle = [there]  # type: ignore[list-item]
    assert (await one._ask_once(b"", 3.0)).status == 200
    assert one._idle == [there]
    assert 2.0 < there.asked[0] <= 3.0
    assert (await one._ask_once(b"", 0.5)).status == 200
    assert there.asked[1] <= 0.5
    with pytest.raises(DeadlineError) as late:
        await one._ask_once(b"", 0.0)
    assert not late.value.is_outcome_unknown
    await one.close()
    assert not there.is_open
    assert one._idle == []
    with pytest.raises(TransportError) as closed:
        await one._ask_once(b"", 3.0)
    assert (closed.value.is_permanent, closed.value.is_outcome_unknown) == (True, False)


async def test_a_connection_that_closed_with_its_answer_is_not_kept() -> None:
    one = Transport("http://h")

    class Closes(FakeConnection):
        has_closed = False

        def close(self) -> None:
            self.has_closed = True
            super().close()

        async def ask(self, request: bytes, within_sec: float) -> HttpReply:
            self.is_open = is_left_open
            if is_left_open:
                await one.close()
            return await super().ask(request, within_sec)

    for is_left_open in (False, True):
        there = Closes(asyncio.get_running_loop().time())
        one._idle = [there]  # type: ignore[list-item]
        await one._ask_once(b"", 3.0)
        assert (one._idle, there.has_closed) == ([], True)


async def test_a_new_connection_is_waited_for_as_long_as_both_limits_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Transport("http://h", connect_sec=2.0)
    waits: list[float] = []

    async def connect(within_sec: float) -> Any:
        waits.append(within_sec)
        return FakeConnection()

    monkeypatch.setattr(one, "_connect", connect)
    for left_sec in (9.0, 1.0):
        await one._ask_once(b"", left_sec)
        one._idle.clear()
    assert waits[0] == 2.0
    assert 0.5 < waits[1] <= 1.0


async def test_what_cannot_be_reached_is_known_not_to_have_acted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Transport("http://127.0.0.1:9")
    loop = asyncio.get_running_loop()
    raised: list[Exception] = [OSError("no"), ssl.SSLCertVerificationError("bad"), TimeoutError()]

    async def refuse(*_: Any, **how: Any) -> Any:
        assert (how["ssl"], how["server_hostname"]) == (None, None)
        raise raised.pop(0)

    monkeypatch.setattr(loop, "create_connection", refuse)
    for is_permanent in (False, True, False):
        with pytest.raises(TransportError) as failed:
            await one._connect(1.0)
        assert not failed.value.is_outcome_unknown
        assert failed.value.is_permanent is is_permanent


@pytest.mark.parametrize(("most", "polls"), [(1, 1), (3, 3), (4, 3), (32, 24)])
async def test_calls_that_wait_at_the_server_leave_connections_to_others(
    most: int, polls: int
) -> None:
    one = Transport("http://h", max_connections=most)
    ends = asyncio.Event()
    under_way: list[bytes] = []

    class Slow(FakeConnection):
        async def ask(self, request: bytes, within_sec: float) -> HttpReply:
            under_way.append(request)
            if request == b"claim":
                await ends.wait()
            return await super().ask(request, within_sec)

    one._idle = [Slow(asyncio.get_running_loop().time()) for _ in range(most)]  # type: ignore[misc]
    claims = [
        asyncio.create_task(one._ask_once(b"claim", 30.0, is_poll=True)) for _ in range(2 * most)
    ]
    await asyncio.sleep(0)
    assert under_way == [b"claim"] * polls
    if polls < most:
        assert (await one._ask_once(b"release", 5.0)).status == 200
    with pytest.raises(DeadlineError) as late:
        await one._ask_once(b"claim", 0.01, is_poll=True)
    assert not late.value.is_outcome_unknown
    ends.set()
    assert {reply.status for reply in await asyncio.gather(*claims)} == {200}


async def test_a_call_waits_for_a_free_connection_as_long_as_it_may() -> None:
    one = Transport("http://h", max_connections=1)
    ends = asyncio.Event()

    class Slow(FakeConnection):
        async def ask(self, request: bytes, within_sec: float) -> HttpReply:
            await ends.wait()
            return await super().ask(request, within_sec)

    slow = Slow(asyncio.get_running_loop().time())
    one._idle = [slow]  # type: ignore[list-item]
    first = asyncio.create_task(one._ask_once(b"", 30.0))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineError) as late:
        await one._ask_once(b"", 0.01)
    assert not late.value.is_outcome_unknown
    second = asyncio.create_task(one._ask_once(b"", 30.0))
    await asyncio.sleep(0)
    ends.set()
    await asyncio.gather(first, second)
    assert len(slow.asked) == 2
