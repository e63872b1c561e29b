"""The attempts of a node: what is answered to an assignment, within the slots, and what is not sent
any more."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ksana.client.context import JobCancelled
from ksana.client.handlers import MAX_RESULT_BYTES
from ksana.client.node_attempts import NodeAttempts, ServedModel
from ksana.client.node_context import ModelNotAvailable, NodeJobContext, NodeJobError
from ksana.client.stats import NodeStats
from ksana.domain.nodes.frames import JobAck, JobPartial, JobStarted, NodeJobResult
from ksana.domain.nodes.records import JobError
from tests.client.fake_socket import assign

pytestmark = pytest.mark.spec("N3", "N7")


class Sent:
    """A socket that writes down what is sent."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.is_full = False

    def send(self, frame: Any, *, is_dispensable: bool = False) -> bool:
        if self.is_full and is_dispensable:
            return False
        self.frames.append(frame)
        return True

    @property
    def last(self) -> Any:
        return self.frames[-1]


class House:
    """A node without a connection. Its handlers wait for the gate, unless they are replaced."""

    def __init__(self, slots: int = 4) -> None:
        self.stats = NodeStats()
        self.models: dict[str, ServedModel] = {}
        self.attempts = NodeAttempts(self.models, slots, self.stats)
        self.attempts.node_id = "n"
        self.sent: Any = Sent()
        self.gate = asyncio.Event()
        self.seen: list[NodeJobContext] = []
        self.serve(self.wait_at_gate)

    def serve(self, handler: Any, *, payload_type: Any = None, interrupt: bool = True) -> None:
        self.models["m"] = ServedModel("m", handler, payload_type, interrupt)

    async def wait_at_gate(self, ctx: NodeJobContext) -> object:
        self.seen.append(ctx)
        await self.gate.wait()
        return ctx.payload

    def take(self, job_id: str = "j", attempt_id: int = 1, **more: Any) -> None:
        self.attempts.take(assign(job_id, attempt_id, **more), self.sent)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        self.gate.set()
        async with asyncio.timeout(5):
            while tasks := self.attempts.tasks:
                await asyncio.wait(tasks)
                await asyncio.sleep(0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    with ThreadPoolExecutor(2) as executor:
        house.attempts.start(executor)
        yield house


def done(data: Any, job_id: str = "j", attempt_id: int = 1) -> NodeJobResult:
    raw = msgspec.Raw(msgspec.json.encode(data))
    return NodeJobResult(job_id=job_id, attempt_id=attempt_id, success=True, data=raw)


def failed(code: str, message: str = "", job_id: str = "j") -> NodeJobResult:
    error = JobError(code=code, message=message)
    return NodeJobResult(job_id=job_id, attempt_id=1, success=False, error=error)


async def test_an_assignment_is_acknowledged_started_and_answered(house: House) -> None:
    house.take("j", 2, payload={"a": 1}, session_id="s", trace_id="t")
    assert house.sent.frames == [JobAck(job_id="j", attempt_id=2)]
    assert (house.attempts.running, len(house.attempts.tasks)) == (1, 1)
    await house.settle()
    assert house.sent.last == JobStarted(job_id="j", attempt_id=2)
    [ctx] = house.seen
    assert (ctx.job_id, ctx.attempt, ctx.model, ctx.payload) == ("j", 2, "m", {"a": 1})
    assert (ctx.node_id, ctx.session_id, ctx.trace_id) == ("n", "s", "t")
    assert ctx.deadline == datetime(2026, 1, 1, tzinfo=UTC)
    assert not ctx.is_cancelled
    await house.finish()
    assert house.sent.last == done({"a": 1}, attempt_id=2)
    assert len(house.sent.frames) == 3
    assert (house.attempts.running, house.attempts.tasks) == (0, [])
    assert house.stats == NodeStats(assigned=1, succeeded=1)


async def test_no_more_handlers_run_than_there_are_slots() -> None:
    house = House(slots=1)
    house.take("a")
    house.take("b")
    await house.settle()
    assert house.sent.frames == [
        JobAck(job_id="a", attempt_id=1),
        JobAck(job_id="b", attempt_id=1),
        JobStarted(job_id="a", attempt_id=1),
    ]
    await house.finish()
    assert house.sent.frames[3:] == [
        done({}, "a"),
        JobStarted(job_id="b", attempt_id=1),
        done({}, "b"),
    ]


async def test_an_assignment_that_is_told_twice_is_taken_once(house: House) -> None:
    house.take("j", 1)
    house.take("j", 1)
    house.take("j", 2)
    await house.settle()
    assert (house.attempts.running, house.stats.assigned, len(house.seen)) == (2, 2, 2)
    await house.finish()


async def test_a_model_without_a_handler_is_refused_and_needs_no_slot(house: House) -> None:
    house.take("j", model="other")
    ack, refusal = house.sent.frames
    assert ack == JobAck(job_id="j", attempt_id=1)
    assert refusal == failed("MODEL_NOT_AVAILABLE", "no handler for 'other'")
    assert house.attempts.running == 0
    assert house.stats == NodeStats(assigned=1, failed=1)


class Picture(msgspec.Struct):
    prompt: str


TOO_LARGE = f"{MAX_RESULT_BYTES + 1} bytes, more than {MAX_RESULT_BYTES}"


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        (NodeJobError("DISK_FULL", "nothing left"), failed("DISK_FULL", "nothing left")),
        (NodeJobError("C" * 200, "m" * 2000), failed("C" * 128, "m" * 1024)),
        (ModelNotAvailable(), failed("MODEL_NOT_AVAILABLE", "the model is not loaded")),
        (ModelNotAvailable("later"), failed("MODEL_NOT_AVAILABLE", "later")),
        (JobCancelled("gave up"), failed("CANCELED", "gave up")),
        (
            ZeroDivisionError("by zero\nat all"),
            failed("HANDLER_ERROR", "ZeroDivisionError: by zero"),
        ),
        (1 << 70, done(1 << 70)),
        ({1: {2}}, done({"1": [2]})),
        (
            object(),
            failed("INVALID_RESULT", "not JSON: Encoding objects of type object is unsupported"),
        ),
        ("x" * (MAX_RESULT_BYTES - 2), done("x" * (MAX_RESULT_BYTES - 2))),
        (
            "x" * (MAX_RESULT_BYTES - 1),
            failed("INVALID_RESULT", f"{TOO_LARGE}: store it elsewhere and answer where"),
        ),
    ],
)
async def test_how_a_handler_ends_is_what_the_server_hears(
    house: House, outcome: Any, answer: NodeJobResult
) -> None:
    async def handler(_: NodeJobContext) -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    house.serve(handler)
    house.take()
    await house.finish()
    assert house.sent.last == answer
    is_done = answer.success
    assert house.stats == NodeStats(assigned=1, succeeded=int(is_done), failed=int(not is_done))


async def test_only_an_error_that_the_handler_did_not_mean_is_logged_with_its_traceback(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(ctx: NodeJobContext) -> None:
        raise {"own": NodeJobError("X"), "odd": KeyError("k")}[ctx.job_id]

    house.serve(handler)
    for name in ("own", "odd"):
        house.take(name)
        await house.finish()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "attempt 1 at job odd (m) failed: KeyError: 'k'"
    assert record.exc_info is not None and record.exc_info[0] is KeyError


async def test_a_payload_is_converted_to_the_type_that_the_handler_names(house: House) -> None:
    async def draw(ctx: NodeJobContext) -> str:
        return f"a picture of {ctx.payload.prompt}"

    house.serve(draw, payload_type=Picture)
    house.take("good", payload={"prompt": "a lake"})
    await house.finish()
    assert house.sent.last == done("a picture of a lake", "good")
    house.take("bad", payload={"prompt": 7})
    await house.finish()
    misfit = "Expected `str`, got `int` - at `$.prompt`"
    assert house.sent.last == failed("INVALID_PAYLOAD", misfit, "bad")


async def test_a_cancelled_attempt_is_interrupted_and_nothing_is_sent(house: House) -> None:
    house.take()
    await house.settle()
    house.attempts.cancel("j", 2, "another attempt")
    house.attempts.cancel("k", 1, "another job")
    assert house.stats.cancelled == 0
    house.attempts.cancel("j", 1, "")
    house.attempts.cancel("j", 1, "again")
    assert house.seen[0].cancelled.reason == "the job was cancelled"
    await house.settle()
    assert house.attempts.running == 0
    assert house.sent.last == JobStarted(job_id="j", attempt_id=1)
    assert house.stats == NodeStats(assigned=1, cancelled=1)


async def test_a_handler_that_is_not_interrupted_is_only_told(house: House) -> None:
    house.serve(house.wait_at_gate, interrupt=False)
    house.take()
    await house.settle()
    house.attempts.cancel("j", 1, "not wanted")
    await house.settle()
    assert (house.attempts.running, house.seen[0].cancelled.reason) == (1, "not wanted")
    await house.finish()
    assert house.sent.last == JobStarted(job_id="j", attempt_id=1)
    assert house.stats == NodeStats(assigned=1, cancelled=1)


async def test_an_attempt_that_waits_for_a_slot_and_is_cancelled_never_begins() -> None:
    house = House(slots=1)
    house.serve(house.wait_at_gate, interrupt=False)
    house.take("a")
    house.take("b")
    await house.settle()
    house.attempts.cancel("b", 1, "")
    await house.settle()
    assert house.attempts.running == 1
    await house.finish()
    assert [ctx.job_id for ctx in house.seen] == ["a"]
    assert house.sent.last == done({}, "a")


async def test_what_is_given_up_is_counted_once_and_told(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.take("a")
    house.take("b", 3)
    await house.settle()
    house.attempts.cancel("a", 1, "")
    house.attempts.give_up("the connection was lost")
    assert house.seen[1].cancelled.reason == "the connection was lost"
    assert caplog.messages == ["attempt 3 at job b is given up: the connection was lost"]
    await house.settle()
    assert house.attempts.running == 0
    assert house.stats == NodeStats(assigned=2, cancelled=1, lost=1)


async def test_a_stop_ends_also_the_handlers_that_are_not_interrupted(house: House) -> None:
    house.serve(house.wait_at_gate, interrupt=False)
    house.take()
    await house.settle()
    house.attempts.give_up("the connection was lost")
    await house.settle()
    assert house.attempts.running == 1
    house.attempts.give_up("the node stops", is_forced=True)
    await house.settle()
    assert (house.attempts.running, house.stats.lost) == (0, 1)


async def test_a_thread_keeps_its_slot_until_it_returns(house: House) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def handler(ctx: NodeJobContext) -> str:
        begun.set()
        may_end.wait(5)
        return threading.current_thread().name

    house.serve(handler)
    house.take()
    await asyncio.to_thread(begun.wait, 5)
    house.attempts.give_up("the node stops", is_forced=True)
    await house.settle()
    assert (house.attempts.running, house.attempts.tasks[0].cancelling()) == (1, 0)
    may_end.set()
    await house.finish()
    assert house.sent.last == JobStarted(job_id="j", attempt_id=1)
    house.take("k")
    await house.finish()
    assert b"MainThread" not in bytes(house.sent.last.data)


async def test_parts_come_before_the_result_from_the_loop_and_from_a_thread(house: House) -> None:
    async def on_loop(ctx: NodeJobContext) -> str:
        ctx.partial({"n": 1})
        ctx.partial({"n": 2})
        return "whole"

    def in_thread(ctx: NodeJobContext) -> str:
        ctx.partial({"n": 1})
        ctx.partial({"n": 2})
        return "whole"

    for handler in (on_loop, in_thread):
        house.sent.frames.clear()
        house.serve(handler)
        house.take()
        await house.finish()
        first, second = (
            JobPartial(job_id="j", attempt_id=1, data=msgspec.Raw(b'{"n":%d}' % n)) for n in (1, 2)
        )
        assert house.sent.frames[2:] == [first, second, done("whole")]


async def test_parts_that_cannot_be_sent_are_counted_and_those_of_a_lost_attempt_are_not(
    house: House,
) -> None:
    house.sent.is_full = True
    house.take()
    await house.settle()
    house.seen[0].partial(1)
    assert house.stats.partials_lost == 1
    house.serve(house.wait_at_gate, interrupt=False)
    house.take("k")
    await house.settle()
    house.attempts.cancel("k", 1, "")
    house.sent.is_full = False
    house.seen[1].partial(1)
    assert house.stats.partials_lost == 1
    assert not [frame for frame in house.sent.frames if isinstance(frame, JobPartial)]
    with pytest.raises(NodeJobError, match="not JSON"):
        house.seen[0].partial(object())
    await house.finish()


def test_a_failure_of_a_node_job_says_its_code_and_its_message() -> None:
    bare, full, lacking = (
        NodeJobError("OOM"),
        NodeJobError("OOM", "no room", "j"),
        ModelNotAvailable(),
    )
    assert (lacking.code, lacking.message) == ("MODEL_NOT_AVAILABLE", "the model is not loaded")
    assert (str(bare), bare.code, bare.message, bare.job_id) == ("OOM", "OOM", "", "")
    assert (str(full), full.code, full.message, full.job_id) == (
        "OOM: no room",
        "OOM",
        "no room",
        "j",
    )


def test_a_handler_that_could_not_be_called_is_refused_when_it_is_registered() -> None:
    with pytest.raises(TypeError, match="the handler of 'draw' takes"):
        ServedModel("draw", lambda: None, None, True)  # type: ignore[arg-type,misc]
    sync = ServedModel("draw", lambda ctx: None, None, True)
    assert (sync.is_async, sync.is_interrupted) == (False, False)
