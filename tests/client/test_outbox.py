"""Results on their way, over a server that answers as told: batches, repeats, halving, and what
becomes of a result that cannot be taken."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ksana.client import outbox as outboxes
from ksana.client.errors import ApiError, TransportError, from_answer, from_body
from ksana.client.handlers import MAX_ERROR_CHARS
from ksana.client.held_lease import HeldLease
from ksana.client.outbox import FULL_ENOUGH, MAX_BATCH, MAX_BATCH_BYTES, Outbox
from ksana.client.releases import Releases
from ksana.client.shapes import ReleaseItem
from ksana.client.transport import CallBackoff

pytestmark = pytest.mark.spec("Q11", "Q16")

Settled = tuple[str, str, str | None]


class Box(Outbox[HeldLease, str]):
    """An item is a text; `answers` is what the server says to it."""

    def __init__(self) -> None:
        super().__init__(self.on_settled, CallBackoff(first_sec=0.0, most_sec=0.0))
        self.batches: list[list[str]] = []
        self.settled: list[Settled] = []
        self.script: list[Any] = []
        self.answers: dict[str, list[ApiError]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.sizes: dict[str, int] = {}

    def on_settled(self, held: HeldLease, item: str, error: ApiError | None) -> None:
        self.settled.append((held.key, item, None if error is None else error.code))

    async def send(self, items: Sequence[str]) -> list[ApiError | None]:
        self.batches.append(list(items))
        await self.gate.wait()
        if self.script:
            what = self.script.pop(0)
            if isinstance(what, Exception):
                raise what
            if callable(what) and (error := what(items)) is not None:
                raise error
        return [self.answers[one].pop(0) if self.answers.get(one) else None for one in items]

    def substitute(self, item: str, error: ApiError) -> str:
        return f"{item}!"

    def size_of(self, item: str) -> int:
        return self.sizes.get(item, 0)

    def put(self, *items: str) -> None:
        for item in items:
            self.add(HeldLease(item, f"job {item}", 0, 0), item)


async def drained(box: Box) -> list[Settled]:
    assert await box.drain(5.0)
    assert len(box) == 0
    return box.settled


def refused(status: int, code: str = "X") -> ApiError:
    return from_body(status, {"code": code})


async def test_what_ends_in_one_turn_leaves_together_and_is_settled_in_order() -> None:
    box = Box()
    assert await box.drain(0.0)
    box.put("a", "b")
    assert len(box) == 2
    assert await drained(box) == [("a", "a", None), ("b", "b", None)]
    assert box.batches == [["a", "b"]]


async def test_what_comes_meanwhile_is_the_next_batch() -> None:
    box = Box()
    box.gate.clear()
    box.put("a")
    await asyncio.sleep(0)
    box.put("b", "c")
    assert len(box) == 3
    assert await box.drain(0.01) is False
    assert box.batches == [["a"]]
    box.gate.set()
    await drained(box)
    assert box.batches == [["a"], ["b", "c"]]


@pytest.mark.parametrize("more", [FULL_ENOUGH - 1, FULL_ENOUGH])
async def test_many_that_wait_are_worth_a_second_request_and_no_third(more: int) -> None:
    box = Box()
    box.gate.clear()
    box.put("a")
    await asyncio.sleep(0)
    box.put(*[f"b{at}" for at in range(more)])
    await asyncio.sleep(0)
    assert len(box.batches) == (2 if more == FULL_ENOUGH == 200 else 1)
    box.put(*[f"c{at}" for at in range(FULL_ENOUGH)])
    await asyncio.sleep(0)
    assert len(box.batches) == 2
    box.gate.set()
    assert len(await drained(box)) == 1 + more + FULL_ENOUGH


async def test_a_batch_is_bounded_by_count_and_bytes() -> None:
    box = Box()
    box.put(*[str(at) for at in range(MAX_BATCH + 1)])
    await drained(box)
    assert [len(batch) for batch in box.batches] == [MAX_BATCH, 1]
    box = Box()
    room = MAX_BATCH_BYTES - 2 * Box.item_bytes
    box.sizes = {"a": 10, "b": room - 10, "c": 1, "d": MAX_BATCH_BYTES * 2}
    box.put("a", "b", "c", "d")
    await drained(box)
    assert box.batches == [["a", "b"], ["c"], ["d"]]
    box = Box()
    box.sizes = {"a": 10, "b": room - 9}
    box.put("a", "b")
    await drained(box)
    assert box.batches == [["a"], ["b"]]


@pytest.mark.parametrize(
    "error",
    [
        TransportError("x", is_outcome_unknown=True),
        refused(503),
        refused(500),
        refused(401),  # a key may be mended
        from_answer(400, b"<html>"),  # a proxy's
        from_answer(404, b""),
    ],
)
async def test_a_batch_that_was_not_answered_is_sent_again(error: Exception) -> None:
    box = Box()
    box.script = [error, error]
    box.put("a", "b")
    assert await drained(box) == [("a", "a", None), ("b", "b", None)]
    assert box.batches == [["a", "b"]] * 3


async def test_the_pause_between_tries_grows_and_heeds_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = Box()
    pauses: list[tuple[int, float | None]] = []

    class Counts(CallBackoff, frozen=True, kw_only=True):
        def pause(self, failures: int, asked_sec: float | None = None) -> float:
            pauses.append((failures, asked_sec))
            return 0.0

    box._backoff = Counts()
    box.script = [TransportError("x", is_outcome_unknown=True), from_answer(503, b"", 7.0)]
    box.answers = {"a": [refused(500)]}
    box.put("a")
    await drained(box)
    assert pauses == [(1, None), (2, 7.0), (3, None)]


@pytest.mark.parametrize("status", [409, 404])
async def test_a_refusal_of_one_is_for_good_and_takes_no_other_along(status: int) -> None:
    box = Box()
    box.answers = {"b": [refused(status, "LEASE_LOST")], "c": [refused(500), refused(500)]}
    box.put("a", "b", "c")
    settled = await drained(box)
    assert settled == [("a", "a", None), ("b", "b", "LEASE_LOST"), ("c", "c", None)]
    assert box.batches == [["a", "b", "c"], ["c"], ["c"]]


async def test_a_result_that_cannot_be_taken_becomes_a_failure_once() -> None:
    box = Box()
    box.answers = {"a": [refused(400, "INVALID")]}
    box.put("a", "b")
    assert await drained(box) == [("b", "b", None), ("a", "a!", None)]
    box = Box()
    box.answers = {"a": [refused(400, "INVALID")], "a!": [refused(400, "WORSE")]}
    box.put("a")
    assert await drained(box) == [("a", "a!", "WORSE")]
    assert box.batches == [["a"], ["a!"]]


@pytest.mark.parametrize("status", [400, 413, 404, 409])
async def test_the_culprit_of_a_refused_batch_is_found_by_halving(status: int) -> None:
    box = Box()

    def refuse(items: Sequence[str]) -> Exception | None:
        return refused(status) if "c" in items else None

    box.script = [refuse] * 9
    box.put("a", "b", "c", "d", "e")
    settled = await drained(box)
    assert sorted(settled) == [
        ("a", "a", None),
        ("b", "b", None),
        ("c", "c!", None),
        ("d", "d", None),
        ("e", "e", None),
    ]
    assert box.batches[1:3] == [["a", "b"], ["c", "d", "e"]]


async def test_what_is_abandoned_is_listed_and_sent_no_more() -> None:
    box = Box()
    box.gate.clear()
    box.put("a", "b")
    await asyncio.sleep(0)
    box.put("c")
    left = await box.abandon()
    assert [held.key for held in left] == ["a", "b", "c"]
    assert (len(box), box.settled) == (0, [])
    assert await box.drain(0.0)
    box.gate.set()
    await asyncio.sleep(0)
    assert box.batches == [["a", "b"]]
    box.put("d")
    assert await drained(box) == [("d", "d", None)]


async def test_a_fault_of_our_own_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    box = Box()
    box.script = [RuntimeError("ours")]
    box.put("a")
    await box.drain(5.0)
    await asyncio.sleep(0)
    assert [one.getMessage() for one in caplog.records] == ["sending results failed"]


def test_the_bounds_stay_below_what_the_server_takes() -> None:
    assert (MAX_BATCH, outboxes.MAX_REQUESTS) == (500, 2)
    assert MAX_BATCH_BYTES + Box.item_bytes < 2**20


def test_a_release_is_replaced_by_a_failure_without_its_result() -> None:
    box = Releases(None, lambda *_: None, CallBackoff())  # type: ignore[arg-type]
    item = ReleaseItem(
        lease_id="l",
        job_id="j",
        worker_id="w",
        status="SUCCEEDED",
        lease_token="k",
        result_data=msgspec.Raw(b'{"a":1}'),
        metrics={"m": 1},
    )
    assert box.size_of(item) == 7
    failed = box.substitute(item, from_body(400, {"code": "INVALID", "message": "m" * 2000}))
    assert (failed.status, failed.result_data, failed.metrics) == ("FAILED", None, None)
    assert (failed.lease_id, failed.lease_token, failed.retry) == ("l", "k", True)
    assert str(failed.error).startswith("the server refused the result: 400 INVALID: mmm")
    assert len(str(failed.error)) == MAX_ERROR_CHARS
    assert box.size_of(failed) == 0


async def test_releases_are_sent_in_batches_that_learn_only_of_refusals() -> None:
    refusal = refused(409)

    class Client:
        async def release_batch_briefly(self, items: Any) -> Any:
            return [None, refusal]

    settled: list[Any] = []
    box = Releases(Client(), lambda *what: settled.append(what[1:]), CallBackoff())  # type: ignore[arg-type]
    for name in ("a", "b"):
        item = ReleaseItem(lease_id=name, job_id=name, worker_id="w", status="SUCCEEDED")
        box.add(HeldLease(name, name, 0, 0), item)  # type: ignore[arg-type]
    assert await box.drain(5.0)
    assert [(item.lease_id, error) for item, error in settled] == [("a", None), ("b", refusal)]


async def test_what_is_refused_or_repeated_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    box = Box()
    box.script = [TransportError("away", is_outcome_unknown=True)]
    box.answers = {"a": [refused(400, "INVALID")]}
    box.put("a")
    await drained(box)
    assert [one.getMessage() for one in caplog.records] == [
        "sending 1 results failed, will repeat: away",
        "the server refused the result of job job a: 400 INVALID: ",
    ]


async def test_a_batch_is_answered_for_each_of_its_results() -> None:
    box = Box()
    box.put("a")

    async def send(items: Sequence[str]) -> list[ApiError | None]:
        return [None, None]

    box.send = send  # type: ignore[method-assign]
    [request] = box._requests
    with pytest.raises(ValueError, match="zip"):
        await request
    assert box.settled == [("a", "a", None)]


async def test_two_results_of_a_refused_batch_are_told_apart() -> None:
    box = Box()

    def refuse(items: Sequence[str]) -> Exception | None:
        return refused(413) if "b" in items else None

    box.script = [refuse] * 5
    box.put("a", "b")
    assert sorted(await drained(box)) == [("a", "a", None), ("b", "b!", None)]
    await asyncio.sleep(0)
    assert box._requests == set()
