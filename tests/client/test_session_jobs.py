"""A job that a session asked for, frame by frame, and the socket's small rules."""

import asyncio
import gc
from typing import Any

import msgspec
import pytest

from ksana.client import node_session_job
from ksana.client.errors import ClientError, TransportError, from_answer, from_body
from ksana.client.node_context import NodeJobError
from ksana.client.node_session import NodeSession
from ksana.client.node_session_job import SessionJob
from ksana.client.node_socket import (
    REPLACED,
    REVOKED,
    SocketAddress,
    SocketClosed,
    is_for_good,
    pause_after,
    refusal_of,
    wait_at_most,
)
from ksana.client.transport import CallBackoff
from ksana.domain.nodes import frames
from ksana.domain.nodes.records import JobError

pytestmark = pytest.mark.spec("N4")


def ask(request_id: str = "r", cancels: list[str] | None = None) -> SessionJob:
    sent = [] if cancels is None else cancels
    return SessionJob(frames.AskJob(model="m", request_id=request_id), sent.append)


def created(job_id: str = "j", request_id: str = "r") -> frames.JobCreated:
    return frames.JobCreated(request_id=request_id, job_id=job_id, state="PENDING", durable=True)


def partial(value: Any, attempt: int = 1) -> frames.SessionPartial:
    data = msgspec.Raw(msgspec.json.encode(value))
    return frames.SessionPartial(job_id="j", attempt_id=attempt, data=data, request_id="r")


def ended(value: Any = None, error: JobError | None = None, success: bool = True) -> Any:
    data = msgspec.Raw(msgspec.json.encode(value))
    return frames.SessionResult(
        job_id="j", attempt_id=2, success=success, request_id="r", data=data, error=error
    )


async def test_a_job_is_made_moves_and_ends_with_its_result() -> None:
    job = ask()
    assert (job.job_id, job.state, job.attempt, job.node_id) == (None, None, 0, None)
    assert (job.is_finished, job.is_durable, job.partials_lost) == (False, False, 0)
    job.on_created(created())
    assert await job.wait_created() == "j"
    assert (job.state, job.is_durable) == ("PENDING", True)
    job.on_update(frames.JobUpdate(job_id="j", state="RUNNING", attempt_id=1, node_id="n"))
    assert (job.state, job.attempt, job.node_id) == ("RUNNING", 1, "n")
    job.on_update(frames.JobUpdate(job_id="j", state="PENDING", attempt_id=2))
    assert (job.attempt, job.node_id) == (2, "n")
    job.on_partial(partial({"a": 1}, 2))
    job.on_partial(partial(2, 3))
    assert job.attempt == 3
    job.on_result(ended([1]))
    assert (job.is_finished, job.state, job.attempt) == (True, "FINISHED", 2)
    assert await job == [1]
    assert [part async for part in job] == [{"a": 1}, 2]
    assert [part async for part in job] == []  # each is given out once
    job.on_partial(partial(3))
    job.on_result(ended([2]))
    job.fail(ClientError("late"))
    assert await job.result() == [1]
    assert [part async for part in job] == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [(None, "FAILED", ""), (JobError(code="OOM", message="no room"), "OOM", "no room")],
)
async def test_a_failure_is_raised_with_its_code(
    error: JobError | None, code: str, message: str
) -> None:
    job = ask()
    job.on_result(ended(error=error, success=False))
    with pytest.raises(NodeJobError) as failed:
        await job
    assert (failed.value.code, failed.value.message, failed.value.job_id) == (code, message, "j")


async def test_a_job_that_was_never_made_raises_for_who_waits() -> None:
    job = ask()
    waiting = asyncio.create_task(job.wait_created())
    await asyncio.sleep(0)
    assert not waiting.done()
    job.fail(TransportError("gone", is_outcome_unknown=True))
    for one in (waiting, job.result()):
        with pytest.raises(TransportError):
            await one


async def test_a_failure_that_nobody_awaits_is_no_error_of_the_program() -> None:
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    job = ask()
    job.fail(ClientError("nobody asks"))
    await asyncio.sleep(0)
    del job
    gc.collect()
    assert said == []


async def test_the_oldest_partials_go_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_session_job, "MOST_PARTIALS", 2)
    job = ask()
    for value in range(4):
        job.on_partial(partial(value))
    job.on_result(ended())
    assert (job.partials_lost, [part async for part in job]) == (2, [2, 3])


async def test_a_cancel_is_sent_once_when_the_job_is_known() -> None:
    cancels: list[str] = []
    job = ask(cancels=cancels)
    job.cancel()
    assert cancels == []
    job.on_created(created())
    assert cancels == ["j"]
    job.cancel()
    assert cancels == ["j"]
    known = ask(cancels=cancels)
    known.on_created(created("k"))
    known.cancel()
    assert cancels == ["j", "k"]
    over = ask(cancels=cancels)
    over.on_created(created("o"))
    over.on_result(ended())
    over.cancel()
    assert cancels == ["j", "k"]


async def test_a_caller_that_stops_waiting_does_not_end_the_job() -> None:
    job = ask()
    waiting = asyncio.create_task(job.result())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    job.on_result(ended(5))
    assert await job == 5


class Wire:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, frame: Any) -> None:
        self.sent.append(frame)


async def open_session() -> tuple[Any, Wire]:
    session: Any = NodeSession("http://h", session_id="s")
    session._task = asyncio.create_task(asyncio.sleep(3600))
    session._socket = wire = Wire()
    return session, wire


async def test_frames_reach_the_job_that_asked_for_them() -> None:
    session, wire = await open_session()
    job = session.request("m", {"a": 1}, request_id="r", labels={"x": "y"}, priority=7, wait_sec=2)
    [sent] = wire.sent
    assert (sent.model, sent.request_id, sent.labels, sent.priority) == ("m", "r", {"x": "y"}, 7)
    assert (bytes(sent.payload), sent.wait_sec, sent.timeout_sec) == (b'{"a":1}', 2, None)
    with pytest.raises(ValueError, match="is under way"):
        session.request("m", request_id="r")
    bare = session.request("m")
    assert len(bare.request_id) == 36
    assert bytes(wire.sent[-1].payload) == b"{}"
    session._take(created())
    session._take(partial(1))
    session._take(frames.JobUpdate(job_id="j", state="RUNNING", attempt_id=1, request_id="r"))
    assert (job.job_id, job.state) == ("j", "RUNNING")
    job.cancel()
    assert wire.sent[-1] == frames.SessionJobCancel(job_id="j")
    session._take(created(request_id="unknown"))
    session._take(ended(9))
    session._take(ended(8))
    assert await job == 9
    assert list(session._pending) == [bare.request_id]
    await session.close()
    with pytest.raises(ClientError, match="closed"):
        await bare
    with pytest.raises(ClientError, match="closed"):
        session.request("m")


@pytest.mark.parametrize(
    ("code", "is_made", "is_refused"),
    [
        ("INVALID_ARGUMENT", False, True),
        ("INVALID_ARGUMENT", True, True),
        ("STORE_DOWN", False, True),
        ("STORE_DOWN", True, False),  # it was made before, and goes on
        ("NO_AVAILABLE_NODE", True, True),
    ],
)
async def test_an_error_ends_the_job_unless_it_goes_on(
    code: str, is_made: bool, is_refused: bool
) -> None:
    session, _ = await open_session()
    job = session.request("m", request_id="r")
    if is_made:
        session._take(created())
    session._take(frames.ErrorFrame(code=code, message="no", request_id="other"))
    session._take(frames.ErrorFrame(code=code, message="no", request_id="r"))
    assert job.is_finished is is_refused
    assert ("r" in session._pending) is not is_refused
    await session.close()


async def test_a_request_that_the_server_would_refuse_is_not_sent() -> None:
    session, wire = await open_session()
    for how in ({"model": ""}, {"model": "m", "priority": 10}, {"model": "m", "wait_sec": -1}):
        with pytest.raises(ValueError, match="would refuse"):
            session.request(**how)
    with pytest.raises(ValueError, match="bytes, more than"):
        session.request("m", "x" * frames.MAX_FRAME)
    assert (wire.sent, session._pending) == ([], {})
    await session.close()
    with pytest.raises(RuntimeError, match="not open"):
        NodeSession("http://h").request("m")


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (SocketClosed(REVOKED, "x"), True),
        (SocketClosed(REPLACED, "x"), False),
        (SocketClosed(1006, ""), False),
        (from_body(403, {"code": "FORBIDDEN"}), True),
        (from_body(499, {"code": "X"}), True),
        (from_body(500, {"code": "X"}), False),
        (from_body(429, {"code": "RATE_LIMITED"}), False),
        (TransportError("x", is_outcome_unknown=False), False),
    ],
)
def test_what_is_refused_for_good_is_not_tried_again(error: ClientError, is_final: bool) -> None:
    assert is_for_good(error) is is_final


def test_a_pause_heeds_the_server_and_an_error_frame_is_an_error() -> None:
    backoff = CallBackoff(first_sec=1.0)
    assert pause_after(from_answer(503, b"", 9.0), 1, backoff) == 9.0
    assert pause_after(SocketClosed(1006, ""), 1, backoff) <= 1.0
    refusal = refusal_of(frames.ErrorFrame(code="STORE_DOWN", message="away"))
    assert (refusal.status, refusal.code, refusal.message) == (503, "STORE_DOWN", "away")
    closed = SocketClosed(4009, "taken")
    assert (str(closed), closed.code, closed.reason) == (
        "the socket was closed: 4009 taken",
        4009,
        "taken",
    )
    assert closed.is_outcome_unknown


async def test_of_several_addresses_the_next_is_tried_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def address(*urls: str) -> SocketAddress:
        return SocketAddress(
            list(urls), "/s", api_key="k", connect_sec=1.0, tls=None, headers={"X-A": "b"}
        )

    one = address("http://a", "https://b", "http://c")
    one._turn = 0
    assert one.shown == "ws://a/s, wss://b/s, ws://c/s"
    assert one._headers == {"X-A": "b", "Authorization": "Bearer k"}
    assert one._tls is not None
    assert address("http://a")._tls is None
    tried: list[str] = []
    answers: list[Any] = [TransportError("x", is_outcome_unknown=False)] * 2 + ["socket"]

    async def open_one(decoder: Any) -> Any:
        tried.append(one.url)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(one, "_open", open_one)
    assert await one.open(None) == "socket"  # type: ignore[arg-type]
    assert tried == ["ws://a/s", "wss://b/s", "ws://c/s"]
    answers += [TransportError("x", is_outcome_unknown=False)] * 3
    with pytest.raises(TransportError):
        await one.open(None)  # type: ignore[arg-type]
    assert (len(tried), one.url) == (6, "ws://c/s")
    answers += [from_body(403, {"code": "FORBIDDEN"})]
    with pytest.raises(ClientError, match="FORBIDDEN"):
        await one.open(None)  # type: ignore[arg-type]
    assert len(tried) == 7
    with pytest.raises(ValueError, match="no address"):
        address()


async def test_an_event_is_waited_for_or_the_time() -> None:
    event = asyncio.Event()
    await wait_at_most(event, 0.001)
    event.set()
    await asyncio.wait_for(wait_at_most(event, 600), 5)
