"""The life of a session on a loop whose time jumps: it connects, loses the server, asks again, and
gives up in time."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ksana.client import NodeSession
from ksana.client.errors import (
    AccessError,
    ApiError,
    BusyError,
    ClientError,
    TransportError,
    from_body,
)
from ksana.client.node_socket import REPLACED, REVOKED, STEADY_SEC, SocketClosed
from ksana.domain.nodes import frames
from tests.client.fake_socket import EvenBackoff, FakeAddress, FakeConnection, session_ack
from tests.ground.jumping import loop_time, on_jumping_time, pass_time

pytestmark = pytest.mark.spec("N4", "N8")

NOT_REACHED = TransportError("not reached", is_outcome_unknown=False)


class House:
    """A session and its server."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.session = NodeSession("http://h", backoff=EvenBackoff(), **options)
        self.server = FakeAddress(self.session, *answers)
        self.server.hello = [session_ack()]

    @property
    def wire(self) -> FakeConnection:
        return self.server.opened[-1]

    def tell_result(self, request_id: str, value: Any) -> None:
        data = msgspec.Raw(msgspec.json.encode(value))
        self.wire.say(
            frames.SessionResult(
                job_id="j", attempt_id=1, success=True, request_id=request_id, data=data
            )
        )


@contextlib.asynccontextmanager
async def opened(*answers: Any, **options: Any) -> AsyncIterator[House]:
    house = House(*answers, **options)
    async with house.session as session:
        assert session is house.session
        yield house


@on_jumping_time
async def test_a_session_says_who_it_is_and_keeps_the_id_that_it_is_given() -> None:
    async with opened() as house:
        await pass_time()
        assert house.wire.sent == [{"type": "session_init", "session_id": None, "protocol": 1}]
        assert (house.session.session_id, house.session.connections) == ("s", 1)
        house.wire.end(1001)
        await pass_time(1.5)
        assert house.wire.sent == [{"type": "session_init", "session_id": "s", "protocol": 1}]
        assert house.session.connections == 2
        assert house.server.passed_on == 1
    assert [wire.is_closed for wire in house.server.opened] == [True, True]


@on_jumping_time
async def test_what_has_no_result_is_asked_again_over_the_next_connection() -> None:
    async with opened() as house:
        first = house.session.request("m", 1, request_id="a")
        second = house.session.request("m", 2, request_id="b")
        await pass_time()
        assert [ask["request_id"] for ask in house.wire.sent_of("job_request")] == ["a", "b"]
        house.tell_result("a", "of a")
        assert await first == "of a"
        house.wire.end()
        await pass_time()
        third = house.session.request("m", 3, request_id="c")  # there is no connection
        second.cancel()
        await pass_time(1.0)
        assert [ask["request_id"] for ask in house.wire.sent_of("job_request")] == ["b", "c"]
        house.wire.say(
            frames.JobCreated(request_id="b", job_id="j2", state="PENDING", durable=False)
        )
        await pass_time()
        assert house.wire.sent[-1] == {"type": "job_cancel", "job_id": "j2"}
        house.tell_result("c", "of c")
        assert await third == "of c"


@pytest.mark.parametrize(
    ("ended", "kind", "told"),
    [
        ((REVOKED, "KEY_REVOKED"), SocketClosed, "4012 KEY_REVOKED"),
        ((REPLACED, "REPLACED"), SocketClosed, "4009 REPLACED"),
    ],
)
@on_jumping_time
async def test_a_session_that_is_over_for_good_ends_what_is_awaited(
    ended: tuple[int, str], kind: type[ClientError], told: str
) -> None:
    async with opened() as house:
        job = house.session.request("m")
        house.wire.end(*ended)
        with pytest.raises(kind, match=told):
            await job
        with pytest.raises(kind, match=told):
            house.session.request("m")
        await pass_time(100)
        assert len(house.server.opened) == 1
    with pytest.raises(kind, match=told):
        house.session.request("m")


@on_jumping_time
async def test_a_server_that_refuses_is_told_at_once() -> None:
    house = House(from_body(401, {"code": "UNAUTHORIZED"}))
    with pytest.raises(AccessError):
        await house.session.__aenter__()
    refused = House()
    refused.server.hello = [frames.ErrorFrame(code="FORBIDDEN", message="not you")]
    with pytest.raises(ApiError, match="not you"):
        await refused.session.__aenter__()
    assert (refused.wire.is_closed, loop_time()) == (True, 0.0)
    assert refused.session.connections == 0


@on_jumping_time
async def test_a_server_that_is_not_there_is_waited_for_as_long_as_said() -> None:
    house = House(*[NOT_REACHED] * 9, connect_sec=4.5)
    with pytest.raises(TransportError) as away:
        await house.session.__aenter__()
    assert str(away.value) == "not connected to ws://h/s within 4.5 s"
    assert away.value.is_outcome_unknown is False
    assert (loop_time(), house.server.tried_at) == (4.5, [0.0, 1.0, 3.0])
    with pytest.raises(ClientError, match="the session is closed"):
        house.session.request("m")
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"
    late = House(NOT_REACHED, NOT_REACHED)
    async with late.session:
        assert loop_time() == 7.5


@on_jumping_time
async def test_an_odd_first_answer_or_none_is_a_failed_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent, odd = FakeConnection(), FakeConnection()
    odd.say(frames.JobCreated(request_id="r", job_id="j", state="PENDING", durable=False))
    house = House(silent, odd, connect_sec=8.0)
    connecting = asyncio.create_task(house.session.__aenter__())
    with pytest.raises(TransportError):
        await connecting  # the first answer had all the time that there was
    assert silent.is_closed
    again = House(odd)
    async with again.session:
        assert again.server.tried_at == [8.0, 9.0]
    assert caplog.messages[-1:] == [
        "the server answered with JobCreated; connecting again in 1.0 s"
    ]
    assert (odd.is_closed, again.server.passed_on) == (True, 2)


@pytest.mark.parametrize("held_sec", [STEADY_SEC, STEADY_SEC - 0.5])
@on_jumping_time
async def test_pauses_grow_until_a_connection_has_held(held_sec: float) -> None:
    async with opened(NOT_REACHED, NOT_REACHED) as house:
        assert house.server.tried_at == [0.0, 1.0, 3.0]
        await pass_time(held_sec)
        house.wire.end(1001)
        await pass_time(9.0)
        again_at = 3.0 + held_sec + (1.0 if held_sec >= STEADY_SEC else 3.0)
        assert house.server.tried_at[3:] == [again_at]


@on_jumping_time
async def test_what_is_awaited_ends_when_the_server_stays_away_too_long() -> None:
    house = House(give_up_sec=8.0, connect_sec=3.0)
    async with house.session as session:
        await pass_time(20.0)
        house.server.answers = [NOT_REACHED] * 5
        job = session.request("m", request_id="a")
        house.wire.end()
        with pytest.raises(TransportError) as lost:
            await job
        # Tried 1, 3 and 6 s after the loss; the next would come after 10 s.
        assert loop_time() == 28.0
        assert str(lost.value) == "no connection for 8 s: not reached"
        assert lost.value.is_outcome_unknown is True
        again = session.request("m", request_id="a")
        with pytest.raises(TransportError, match="no connection for 8 s"):
            await again
        assert loop_time() == 30.0, "still away at the next try"
        await pass_time(12.0)
        assert house.server.tried_at == [0.0, 21.0, 23.0, 26.0, 30.0, 35.0, 41.0]
        third = session.request("m", request_id="a")
        await pass_time(1.0)
        house.server.answers = [NOT_REACHED] * 2
        house.wire.end()
        await pass_time(7.5)
        assert not third.is_finished, "the time without a server counts from its last loss"
        assert session.connections == 2


@on_jumping_time
async def test_a_pause_that_ends_with_the_patience_is_the_end() -> None:
    house = House(give_up_sec=6.0)
    async with house.session as session:
        house.server.answers = [NOT_REACHED] * 2
        job = session.request("m")
        house.wire.end()
        with pytest.raises(TransportError, match="no connection for 6 s"):
            await job
        assert loop_time() == 6.0
        await pass_time()
        assert house.server.tried_at == [0.0, 1.0, 3.0, 6.0]


@on_jumping_time
async def test_closing_ends_what_is_awaited_and_may_be_done_twice() -> None:
    async with opened() as house:
        job = house.session.request("m")
        await house.session.close()
        with pytest.raises(ClientError, match="the session is closed"):
            await job
        assert house.wire.is_closed
        await house.session.close()
        job.cancel()
    with pytest.raises(ClientError, match="the session is closed"):
        house.session.request("m")


@on_jumping_time
async def test_a_request_may_be_as_large_as_a_frame() -> None:
    async with opened() as house:
        spare = frames.MAX_FRAME - len(frames.encode(house.session.request("m", "").ask))
        house.session.request("m", "x" * spare)
        with pytest.raises(ValueError, match=f"{frames.MAX_FRAME + 1} bytes, more than"):
            house.session.request("m", "x" * (spare + 1))


@on_jumping_time
async def test_parts_come_in_their_order_until_the_end() -> None:
    async with opened() as house:
        job = house.session.request("m", request_id="a")
        for n in (1, 2):
            data = msgspec.Raw(b"%d" % n)
            house.wire.say(
                frames.SessionPartial(job_id="j", attempt_id=1, data=data, request_id="a")
            )
        house.tell_result("a", "whole")
        assert [part async for part in job] == [1, 2]
        assert await job == "whole"


def test_sessions_have_a_path_of_their_own() -> None:
    assert NodeSession("http://h")._address.url == "ws://h/ws/session"


@on_jumping_time
async def test_an_error_that_belongs_to_no_request_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ksana.client")
    async with opened() as house:
        job = house.session.request("m", request_id="a")
        house.wire.say(frames.ErrorFrame(code="NOT_FOUND", message="no such job"))
        await pass_time()
        assert not job.is_finished
        house.wire.say(frames.ErrorFrame(code="NO_AVAILABLE_NODE", message="none", request_id="a"))
        with pytest.raises(BusyError, match="NO_AVAILABLE_NODE"):
            await job
    assert caplog.messages == ["the server says NOT_FOUND: no such job"]


def test_a_request_without_a_payload_asks_with_an_empty_object() -> None:
    async def ask() -> None:
        async with opened() as house:
            house.session.request("m", timeout_sec=9.0)
            house.session.request("m", 0, priority=9, labels={"a": "b"}, wait_sec=2.0)
            await pass_time()
            bare, full = (dict(ask) for ask in house.wire.sent_of("job_request"))
            assert len(bare.pop("request_id")) == len(full.pop("request_id")) == 36
            assert bare == {
                "type": "job_request",
                "model": "m",
                "labels": {},
                "priority": 5,
                "payload": {},
                "wait_sec": 0.0,
                "timeout_sec": 9.0,
            }
            assert full == {
                **bare,
                "labels": {"a": "b"},
                "priority": 9,
                "payload": 0,
                "wait_sec": 2.0,
                "timeout_sec": None,
            }

    on_jumping_time(ask)()
