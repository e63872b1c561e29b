"""The life of a governor on a loop whose time jumps: what it pulls and when, and what it does
after a failure."""

import asyncio
import logging
from typing import Any

import pytest

from ksana.base.instant import SECOND
from ksana.client.errors import AccessError, TransportError, from_body
from ksana.client.governance_client import MAX_PULL
from ksana.client.governance_shapes import AckItem
from tests.client.fake_socket import EvenBackoff
from tests.client.governor_house import GovernorHouse, at_work, job
from tests.ground.jumping import loop_time, on_jumping_time, pass_time

pytestmark = pytest.mark.spec("G5")

CUT = TransportError("cut", is_outcome_unknown=True)
NOT_REACHED = TransportError("not reached", is_outcome_unknown=False)


# --- pulling ---


@on_jumping_time
async def test_a_pull_asks_for_as_much_as_there_is_room_and_says_what_for() -> None:
    options = {"object_types": ["memory"], "order": "priority", "wait_sec": 3.0}
    async with at_work(**options) as house:
        house.governor.add_action("archive", lambda ctx: None)
        house.server.jobs = [[job("a"), job("b")]]
        await pass_time()
        asked = {
            "worker_id": "w",
            "limit": 4,
            "lease_sec": 60,
            "wait_sec": 3.0,
            "actions": ["archive", "verify"],
            "object_types": ["memory"],
            "order": "priority",
            "tries": 1,
        }
        assert house.server.pulls == [asked, {**asked, "limit": 2}]
        assert (house.governor.running, list(house.governor.held)) == (2, ["a", "b"])
        house.gate.set()
        await pass_time()
        assert house.server.acked == [
            [
                AckItem(job_id="a", lease_token="ka", worker_id="w"),
                AckItem(job_id="b", lease_token="kb", worker_id="w"),
            ]
        ]
        assert house.governor.held == {}
        await pass_time(5.0)
        assert house.server.pulled_at == [0.0, 0.0, 3.0]
        assert house.server.pulls[2]["limit"] == 4


@on_jumping_time
async def test_a_full_governor_pulls_when_a_handler_has_ended() -> None:
    async with at_work(concurrency=2) as house:
        house.server.jobs = [[job("a"), job("b")]]
        await pass_time(30.0)
        assert house.server.pulled_at == [0.0]
        house.server.jobs = [[job("c"), job("d")]]
        house.gate.set()
        await pass_time()
        assert (house.server.pulled_at[:2], house.server.pulls[1]["limit"]) == ([0.0, 30.0], 2)
        house.gate.clear()
        house.server.jobs = [[job("e"), job("f")]]
        await pass_time(30.0)
        pulled = len(house.server.pulled_at)
        assert house.governor.running == 2
        await pass_time(20.0)
        assert len(house.server.pulled_at) == pulled


@on_jumping_time
async def test_a_pull_is_never_larger_than_the_server_takes() -> None:
    async with at_work(concurrency=2 * MAX_PULL) as house:
        await pass_time()
        assert house.server.pulls[0]["limit"] == MAX_PULL


@on_jumping_time
async def test_a_lease_counts_from_when_the_pull_left() -> None:
    async with at_work(wait_sec=8.0) as house:
        loop = asyncio.get_running_loop()
        pull = house.server.pull

        async def wait_and_pull(*args: Any, **how: Any) -> Any:
            await asyncio.sleep(8.0)
            return [job("a")] if not house.seen else await pull(*args, **how)

        house.server.pull = wait_and_pull  # type: ignore[method-assign]
        began_at = round(loop.time() * SECOND)
        await pass_time(8.1)
        held = house.governor.held["a"]
        assert (held.beaten_at, held.fence_at) == (began_at, began_at + 60 * SECOND)


@on_jumping_time
async def test_a_server_that_does_not_wait_is_asked_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ksana.client.governor.EARLY_EMPTY", EvenBackoff())
    async with at_work(wait_sec=2.0) as house:
        house.server.jobs = [[], [], []]
        await pass_time(6.5)
        assert house.server.pulled_at == [0.0, 1.0, 3.0, 6.0]
        await pass_time(1.0)
        house.server.jobs = [[], []]  # it has waited once
        await pass_time(2.0)
        assert house.server.pulled_at[4:] == [8.0, 9.0]


@pytest.mark.parametrize(
    ("after_sec", "pulled_at"), [(2.0, [0.0, 2.0, 4.0, 6.0]), (1.9, [0.0, 2.9, 6.8])]
)
@on_jumping_time
async def test_an_empty_answer_is_early_before_half_of_the_wait_is_over(
    monkeypatch: pytest.MonkeyPatch, after_sec: float, pulled_at: list[float]
) -> None:
    monkeypatch.setattr("ksana.client.governor.EARLY_EMPTY", EvenBackoff())
    async with at_work(wait_sec=4.0) as house:

        async def pull(worker_id: str, **how: Any) -> list[Any]:
            house.server.pulled_at.append(loop_time())
            await asyncio.sleep(after_sec)
            return []

        house.server.pull = pull  # type: ignore[method-assign]
        await pass_time(7.0)
        assert house.server.pulled_at == pulled_at


# --- failures ---


@on_jumping_time
async def test_a_server_that_is_away_is_asked_again_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ksana.client")
    async with at_work(wait_sec=1.0) as house:
        house.server.jobs = [NOT_REACHED, NOT_REACHED, CUT, [job("a")]]
        house.gate.set()
        await pass_time(6.5)
        assert house.server.pulled_at[:4] == [0.0, 1.0, 3.0, 6.0]
        house.server.jobs = [CUT]
        await pass_time(2.0)
    assert caplog.messages == [
        "worker w: starting, concurrency 4, verify of memory, experience, cognition",
        "worker w: cannot reach http://h, trying again until it answers: not reached",
        "worker w: found http://h again after 6.0 s",
        "worker w: the answer to a pull was lost; what it handed out comes back within 60 s",
        "worker w: lost http://h, trying again until it answers: cut",
        "worker w: found http://h again after 2.0 s",
        "worker w: stopped; succeeded 1, failed 0, cancelled 0, timed out 0, lost 0",
    ]


@on_jumping_time
async def test_a_governor_that_is_refused_ends_with_the_refusal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = GovernorHouse()
    house.server.jobs = [from_body(403, {"code": "FORBIDDEN", "message": "not you"})]
    house.start()
    with pytest.raises(AccessError, match="not you"):
        await house.end()
    assert (house.governor.thread.life, house.server.is_closed) == (["started", "stopped"], False)
    assert caplog.messages == ["the server refuses to hand out jobs: 403 FORBIDDEN: not you"]


@on_jumping_time
async def test_with_burst_it_ends_when_nothing_is_left_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ksana.client.governor.EARLY_EMPTY", EvenBackoff())
    house = GovernorHouse(wait_sec=5.0)
    house.server.jobs = [[job("a")]]
    house.start(burst=True)
    await pass_time(2.5)
    assert house.server.pulled_at == [0.0, 0.0, 1.0, 2.0], "it looks again while a handler works"
    assert {pull["wait_sec"] for pull in house.server.pulls} == {0.0}
    house.gate.set()
    stats = await house.end()
    assert (stats.claimed, stats.succeeded, loop_time()) == (1, 1, 3.0)
    assert house.governor.is_stopping
    assert stats is house.governor.stats
