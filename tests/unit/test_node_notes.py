"""Nodes: what is noted of a job, how notes reach the store, and work that nobody waits for."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError, StoreDownError
from ksana.domain.nodes.records import JobError, JobOutcome, JobRequest
from ksana.engine.core.pump import AGAIN
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.job_notes import JobNotes
from ksana.engine.nodes.recorder import EventRecorder
from tests.ground.logs import capture_logs

T = TypeVar("T")
NOON = "2026-01-01T12:00:00Z"
NOON_AT = 1_767_268_800_000_000
LONG = "x" * 2000


class Batches:
    """A store that only takes events, and keeps the batches apart."""

    def __init__(self) -> None:
        self.taken: list[list[tuple[str, str, str, str]]] = []
        self.is_down = False
        self.events = self

    def append_texts(self, batch: list[tuple[str, str, str, str]]) -> None:
        self.taken.append(list(batch))

    async def transact(self, fn: Callable[..., T], *args: Any) -> T:
        if self.is_down:
            raise StoreDownError("no store")
        return fn(self, *args)


@pytest.fixture
def store() -> Batches:
    return Batches()


@pytest.fixture
def recorder(store: Batches, clock: VirtualClock) -> EventRecorder:
    return EventRecorder(store, clock)  # type: ignore[arg-type]


def a_request(**members: Any) -> JobRequest:
    return JobRequest(job_id="j", model="echo", priority=7, **members)


NOTES: list[tuple[Callable[[JobNotes], None], str, dict[str, Any]]] = [
    (
        lambda notes: notes.created(a_request(session_id="s", request_id="r", trace_id="t")),
        "NODE_JOB_CREATED",
        {"model": "echo", "priority": 7, "session_id": "s", "request_id": "r", "trace_id": "t"},
    ),
    (
        lambda notes: notes.created(a_request()),
        "NODE_JOB_CREATED",
        {"model": "echo", "priority": 7},
    ),
    (
        lambda notes: notes.refused(a_request(session_id="s", request_id="r"), "no node"),
        "NODE_JOB_REFUSED",
        {"reason": "no node", "model": "echo", "session_id": "s", "request_id": "r"},
    ),
    (
        lambda notes: notes.refused(a_request(), "no node"),
        "NODE_JOB_REFUSED",
        {"reason": "no node", "model": "echo"},
    ),
    (
        lambda notes: notes.waiting("j", "no slot", NOON_AT),
        "NODE_JOB_WAITING",
        {"reason": "no slot", "until": NOON},
    ),
    (
        lambda notes: notes.dispatched("j", 2, "n", NOON_AT),
        "NODE_JOB_DISPATCHED",
        {"attempt": 2, "node_id": "n", "deadline": NOON},
    ),
    (
        lambda notes: notes.retried("j", 2, "n", "NO_ACK", None),
        "NODE_JOB_RETRIED",
        {"attempt": 2, "node_id": "n", "reason": "NO_ACK"},
    ),
    (
        lambda notes: notes.retried("j", 2, "n", "NO_ACK", JobError(code="C", message=LONG)),
        "NODE_JOB_RETRIED",
        {"attempt": 2, "node_id": "n", "reason": "NO_ACK", "error": LONG[:1024]},
    ),
    (
        lambda notes: notes.finished("j", 3, "n", JobOutcome(success=True)),
        "NODE_JOB_FINISHED",
        {"attempt": 3, "success": True, "node_id": "n"},
    ),
    (
        lambda notes: notes.finished(
            "j", 3, "", JobOutcome(success=False, error=JobError(code="C", message=LONG))
        ),
        "NODE_JOB_FINISHED",
        {"attempt": 3, "success": False, "error": {"code": "C", "message": LONG[:1024]}},
    ),
    (lambda notes: notes.released("j", 3), "NODE_JOB_RELEASED", {"attempt": 3}),
]


@pytest.mark.parametrize(("note", "name", "data"), NOTES)
async def test_each_note_of_a_job_has_its_name_and_its_members(
    store: Batches,
    recorder: EventRecorder,
    note: Callable[[JobNotes], None],
    name: str,
    data: dict[str, Any],
) -> None:
    note(JobNotes(recorder))
    await recorder.flush()
    ((row,),) = store.taken
    assert (*row[:3], msgspec.json.decode(row[3])) == ("NODE_JOB", "j", name, data)


async def test_a_note_wakes_the_loop_that_writes_it(
    store: Batches, recorder: EventRecorder, clock: VirtualClock
) -> None:
    assert recorder.pump.name == "node-events"
    running = asyncio.create_task(recorder.pump.run())
    await clock.advance(100_000)
    recorder.note("NODE", "n", "NODE_DRAINING", {})
    await clock.settle()
    recorder.note("NODE", "n", "NODE_UNDRAINED", {})
    await clock.advance(19_999)  # notes of one moment are written together
    assert store.taken == [[("NODE", "n", "NODE_DRAINING", "{}")]]
    await clock.advance(1)
    assert store.taken[1:] == [[("NODE", "n", "NODE_UNDRAINED", "{}")]]
    running.cancel()


async def test_notes_that_nobody_hinted_at_are_written_within_five_seconds(
    store: Batches, recorder: EventRecorder, clock: VirtualClock
) -> None:
    running = asyncio.create_task(recorder.pump.run())
    await clock.settle()
    recorder.note("NODE", "n", "NODE_DRAINING", {})
    recorder.pump._wake.clear()
    await clock.advance(4_999_999)
    assert store.taken == []
    await clock.advance(1)
    assert len(store.taken) == 1
    running.cancel()


async def test_notes_wait_for_a_store_that_is_down_and_keep_their_order(
    store: Batches, recorder: EventRecorder
) -> None:
    store.is_down = True
    for name in ("A", "B"):
        recorder.note("NODE", "n", name, {})
    with pytest.raises(StoreDownError):
        await recorder.flush()
    store.is_down = False
    await recorder.flush()
    await recorder.flush()
    assert [[row[2] for row in batch] for batch in store.taken] == [["A", "B"]]


async def test_many_notes_are_written_in_portions_and_none_beyond_the_bound(
    store: Batches, recorder: EventRecorder
) -> None:
    for number in range(50_002):
        recorder.note("NODE", str(number), "X", {})
    assert recorder.dropped == 2
    answers = [await recorder.pump._step() for _ in range(26)]
    assert answers == [*([AGAIN] * 24), None, None]
    assert [len(batch) for batch in store.taken] == [2_000] * 25
    assert [row[1] for batch in store.taken for row in batch] == [str(n) for n in range(50_000)]


async def test_nothing_was_dropped_as_long_as_there_is_room(recorder: EventRecorder) -> None:
    recorder.note("NODE", "n", "X", {})
    assert recorder.dropped == 0


# ---- work that nobody waits for ----


async def test_work_is_counted_until_it_ends() -> None:
    background = Background()
    gate = asyncio.Event()
    background.spawn(gate.wait())
    background.spawn(gate.wait())
    assert len(background) == 2
    gate.set()
    await background.close()
    assert len(background) == 0


async def test_work_that_ends_within_the_time_is_not_cut_off() -> None:
    background, ended = Background(), []

    async def work() -> None:
        for _ in range(9):
            await asyncio.sleep(0)
        ended.append("work")

    background.spawn(work())
    await background.close(within_sec=5.0)
    assert ended == ["work"]


async def test_work_that_does_not_end_is_cut_off() -> None:
    background, ends = Background(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cut off")

    background.spawn(work())
    await asyncio.sleep(0)
    await background.close(within_sec=0)
    assert (ends, len(background)) == (["cut off"], 0)


@pytest.mark.parametrize(
    ("error", "level"), [(DependencyDownError("away"), "warning"), (ValueError("bug"), "error")]
)
async def test_work_that_fails_is_logged_by_whether_the_fabric_was_away(
    error: Exception, level: str
) -> None:
    background = Background()

    async def work() -> None:
        raise error

    with capture_logs() as logs:
        background.spawn(work())
        await background.close()
    (line,) = logs
    assert line["log_level"] == level
    assert str(error) == line.get("err", "bug")
    assert line.get("exc_info") is (error if level == "error" else None)
    assert len(background) == 0


async def test_work_that_ends_well_or_is_cut_off_is_not_logged() -> None:
    background = Background()
    with capture_logs() as logs:
        background.spawn(asyncio.sleep(0))
        background.spawn(asyncio.Event().wait())
        await asyncio.sleep(0)
        await background.close(within_sec=0)
    assert logs == []
