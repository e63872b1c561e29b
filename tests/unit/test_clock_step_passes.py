"""Steps of the clock: what is taken for one, what is written down of it, and how tasks are gone
through after a step back."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MINUTE, SECOND, Instant, format_instant
from ksana.domain.tasks.clock_steps import (
    NO_WINDOWS,
    ClockWindows,
    LivedSpan,
    SkippedSpan,
    make_windows,
)
from ksana.domain.tasks.records import Task
from ksana.engine.tasks import clock_steps
from ksana.engine.tasks.clock_steps import (
    KNOWN_FOR,
    PAUSE,
    TOLERANCE,
    ClockSteps,
    read_windows,
    write_steps,
    write_unseen_steps,
)
from ksana.ports.clock_steps import ClockStep
from ksana.ports.store import Instance
from tests.unit.delivery_ground import ScriptedStore, is_signalled, step
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import NOW, a_task

pytestmark = pytest.mark.spec("X5")

AHEAD, BACK = NOW + 500 * SECOND, NOW + 600 * SECOND
SET_BACK = make_windows([SkippedSpan(NOW, AHEAD)], [LivedSpan(AHEAD, BACK, NOW)])
"""The clock jumped from NOW, was lived by for a while, and shows NOW again."""


class Ground:
    """What is known of steps, over a scripted store."""

    def __init__(self, windows: ClockWindows = NO_WINDOWS, now: Instant = NOW) -> None:
        self.clock = VirtualClock(now)
        self.store = ScriptedStore()
        self.store.answer("write_unseen_steps", None)
        self.store.answer("write_steps", None)
        self.store.answer("read_windows", windows)
        self.hints: list[Instant] = []
        self.steps = ClockSteps(
            self.store,  # type: ignore[arg-type]
            self.clock,
            "me",
            self.hints.append,
        )

    async def step(self) -> int | None:
        comes_back = await step(self.steps.pump)
        return None if comes_back is None else comes_back - self.clock.now()

    async def seen(self) -> list[ClockStep]:
        """What a pass writes down."""
        await self.step()
        return [one for name, args in self.store.asked if name == "write_steps" for one in args[0]]


# What is taken for a step

FIRST = 100 * SECOND
"""When the first reading was asked for, on the monotonic clock; it took ten seconds."""


def reading_of(ground: Ground, now: Instant, asked: int = 200, answered: int = 230) -> None:
    """A second reading, after one of NOW."""
    ground.steps.observe(NOW, FIRST, FIRST + 10 * SECOND)
    ground.steps.pump._wake.clear()
    ground.steps.observe(now, asked * SECOND, answered * SECOND)


LATEST = NOW + 130 * SECOND + TOLERANCE
"""The longest that can have passed between the readings, and a little."""
EARLIEST = NOW + 90 * SECOND - TOLERANCE


@pytest.mark.parametrize("now", [EARLIEST, NOW + 100 * SECOND, LATEST])
async def test_what_may_be_time_that_passed_is_no_step(now: Instant) -> None:
    ground = Ground()
    reading_of(ground, now)
    assert not is_signalled(ground.steps.pump)
    assert await ground.seen() == []
    assert ground.store.names() == ["read_windows"]


async def test_a_step_ahead_is_written_down_with_what_it_skipped() -> None:
    ground = Ground()
    reading_of(ground, LATEST + 1)
    assert is_signalled(ground.steps.pump)
    assert await ground.seen() == [
        ClockStep(is_back=False, from_at=NOW, to_at=LATEST + 1, seen_at=LATEST + 1)
    ]
    assert ground.steps.windows == NO_WINDOWS
    assert ground.store.names() == ["write_steps", "read_windows"]
    assert await ground.seen() == [], "once"


async def test_a_step_back_is_written_down_with_what_was_lived_and_known_at_once() -> None:
    ground = Ground()
    reading_of(ground, EARLIEST - 1)
    assert is_signalled(ground.steps.pump)
    assert ground.steps.windows == make_windows([], [LivedSpan(NOW, NOW, EARLIEST - 1)])
    assert await ground.seen() == [
        ClockStep(is_back=True, from_at=NOW, to_at=NOW, seen_at=EARLIEST - 1)
    ]


@pytest.mark.parametrize(("early", "is_step"), [(TOLERANCE, False), (TOLERANCE + 1, True)])
async def test_a_reading_right_after_another_may_differ_a_little(early: int, is_step: bool) -> None:
    ground = Ground()
    reading_of(ground, NOW - early, asked=110, answered=110)
    assert len(await ground.seen()) == is_step


async def test_what_was_lived_is_counted_from_the_last_step() -> None:
    ground = Ground()
    observe, at = ground.steps.observe, NOW
    for now, mono in [(at, 0), (at + HOUR, 1), (at + HOUR + MINUTE, MINUTE), (at, MINUTE + 1)]:
        observe(now, mono, mono)
    lived = LivedSpan(NOW + HOUR, NOW + HOUR + MINUTE, NOW)
    assert ground.steps.windows == make_windows([], [lived])
    assert await ground.seen() == [
        ClockStep(is_back=False, from_at=NOW, to_at=NOW + HOUR, seen_at=NOW + HOUR),
        ClockStep(is_back=True, from_at=lived.since, to_at=lived.until, seen_at=NOW),
    ]


# The loop


def test_its_loop_has_a_net() -> None:
    pump = Ground().steps.pump
    assert (pump.name, pump._poll_us) == ("clock-steps", MINUTE)


async def test_what_was_written_down_is_read_at_the_start() -> None:
    ground = Ground()
    assert ground.steps.is_loaded is False
    await ground.steps.load()
    assert ground.store.asked == [("write_unseen_steps", ("me",)), ("read_windows", ())]
    assert (ground.steps.is_loaded, is_signalled(ground.steps.pump)) == (True, False)


def a_silent_task(task_id: int, **members: Any) -> Task:
    """A task that is armed for later than what the clock jumped over."""
    later = NOW + 700 * SECOND
    return a_task(**{"id": task_id, "next_slot_at": later, "fire_at": later, **members})


async def test_after_a_start_with_a_clock_set_back_silent_tasks_are_armed() -> None:
    ground = Ground(SET_BACK)
    await ground.steps.load()
    assert is_signalled(ground.steps.pump)
    armed = a_task(id=2, next_slot_at=NOW + 10 * SECOND, fire_at=NOW + 10 * SECOND)
    ground.store.answer("list_after", [a_silent_task(1), armed, a_silent_task(3)])
    ground.store.answer("arm_tasks", [11, 13])
    ground.store.asked.clear()
    assert await ground.step() is None
    assert ground.store.asked == [
        ("read_windows", ()),
        ("list_after", (0,)),
        ("arm_tasks", ([1, 3], SET_BACK, "me")),
    ]
    assert ground.hints == [11, 13]
    ground.store.asked.clear()
    assert await ground.step() is None
    assert ground.store.names() == ["read_windows"], "one sweep"


async def test_a_sweep_goes_on_page_by_page_and_arms_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock_steps, "PAGE", 3)
    monkeypatch.setattr(clock_steps, "BATCH", 2)
    ground = Ground(SET_BACK)
    await ground.steps.load()
    pages = [a_silent_task(n) for n in (4, 5, 9)], [a_silent_task(11)]
    ground.store.answer("list_after", *pages)
    ground.store.answer("arm_tasks", [])
    ground.store.asked.clear()
    assert [await ground.step() for _ in range(3)] == [PAUSE, None, None]
    asked = [(name, args[0]) for name, args in ground.store.asked if name != "read_windows"]
    assert asked == [
        ("list_after", 0),
        ("arm_tasks", [4, 5]),
        ("arm_tasks", [9]),
        ("list_after", 9),
        ("arm_tasks", [11]),
    ]


async def test_a_step_back_has_tasks_armed_by_the_clock_of_the_store() -> None:
    ground = Ground(SET_BACK, now=BACK + HOUR)  # ours is elsewhere
    ground.steps.observe(BACK, 0, 0)
    ground.steps.observe(NOW, 1, 1)
    ground.store.answer("list_after", [a_silent_task(1)])
    ground.store.answer("arm_tasks", [11])
    await ground.step()
    assert ground.store.asked[-2:] == [
        ("list_after", (0,)),
        ("arm_tasks", ([1], SET_BACK, "me")),
    ]


async def test_where_nothing_was_jumped_over_no_task_is_looked_at() -> None:
    ground = Ground(make_windows([], [LivedSpan(AHEAD, BACK, NOW)]))
    await ground.steps.load()
    assert await ground.step() is None
    assert "list_after" not in ground.store.names()


async def test_without_a_step_back_what_others_wrote_is_only_read() -> None:
    ground = Ground(SET_BACK)
    assert await ground.step() is None
    assert ground.store.names() == ["read_windows"]
    assert ground.steps.windows == SET_BACK


# What is written down

STEP_AHEAD = ClockStep(is_back=False, from_at=NOW, to_at=AHEAD, seen_at=AHEAD)
STEP_BACK = ClockStep(is_back=True, from_at=AHEAD, to_at=BACK, seen_at=NOW)


def test_steps_are_remembered_with_their_events() -> None:
    tx = ScriptedTx()
    write_steps(tx, [STEP_AHEAD, STEP_BACK])
    now, ahead, back = (format_instant(at) for at in (NOW, AHEAD, BACK))
    told = {"direction": "ahead", "from": now, "to": ahead}
    told_back = {"direction": "back", "from": back, "to": now}
    assert tx.told == [
        Told("clock_steps.add", (STEP_AHEAD,), {}),
        Told("events.append", ("STORE", "clock", "CLOCK_STEPPED", told), {}),
        Told("clock_steps.add", (STEP_BACK,), {}),
        Told("events.append", ("STORE", "clock", "CLOCK_STEPPED", told_back), {}),
    ]


def an_instance(name: str, started_at: Instant, alive_at: Instant, **members: Any) -> Instance:
    given: dict[str, Any] = {"lease_until": alive_at, "stopped_at": None, "outage_from": None}
    return Instance(name, "host", "0", started_at, alive_at, **given | members)


def unseen(*known: ClockStep, instances: list[Instance]) -> list[ClockStep]:
    tx = ScriptedTx(clock_steps_list_beyond=list(known), instances_list_instances=instances)
    write_unseen_steps(tx, "me")
    assert tx.told[0] == Told("clock_steps.list_beyond", (NOW,), {})
    return [args[0] for args in tx.args_of("clock_steps.add")]


def test_a_sign_of_life_later_than_now_tells_of_a_step_back_that_nobody_saw() -> None:
    instances = [
        an_instance("me", NOW - HOUR, BACK),
        an_instance("well", NOW - HOUR, NOW + TOLERANCE),
        an_instance("ahead", NOW - HOUR, NOW + TOLERANCE + 1),
    ]
    lived = ClockStep(is_back=True, from_at=NOW - HOUR, to_at=NOW + TOLERANCE + 1, seen_at=NOW)
    assert unseen(instances=instances) == [lived]


@pytest.mark.parametrize(
    ("known", "since"),
    [
        ([], NOW - HOUR),
        ([STEP_AHEAD], AHEAD),
        ([ClockStep(is_back=False, from_at=NOW, to_at=BACK, seen_at=BACK)], BACK),
        ([ClockStep(is_back=False, from_at=NOW, to_at=BACK + 1, seen_at=BACK)], NOW - HOUR),
        ([ClockStep(is_back=True, from_at=NOW, to_at=BACK - 1, seen_at=NOW)], NOW - HOUR),
    ],
    ids=["since it began", "since the jump", "at its last sign", "a later jump", "a step back"],
)
def test_it_lived_since_it_began_or_since_the_clock_jumped_under_it(
    known: list[ClockStep], since: Instant
) -> None:
    found = unseen(*known, instances=[an_instance("other", NOW - HOUR, BACK)])
    assert found == [ClockStep(is_back=True, from_at=since, to_at=BACK, seen_at=NOW)]


def test_a_step_back_that_is_known_is_not_written_down_again() -> None:
    beside = ClockStep(is_back=True, from_at=AHEAD, to_at=BACK + 5, seen_at=NOW)
    instances = [an_instance("other", NOW - HOUR, BACK)]
    assert unseen(beside, STEP_BACK, instances=instances) == []


# What is known


def windows_of(*steps: ClockStep, instances: list[Instance]) -> ClockWindows:
    tx = ScriptedTx(clock_steps_list_beyond=list(steps), instances_list_instances=instances)
    windows = read_windows(tx)
    assert tx.told[0] == Told("clock_steps.list_beyond", (NOW - KNOWN_FOR,), {})
    return windows


def test_steps_are_the_spans_that_were_skipped_and_lived() -> None:
    assert windows_of(STEP_AHEAD, STEP_BACK, instances=[]) == SET_BACK


def test_a_step_ahead_alone_concerns_no_time_to_come() -> None:
    assert windows_of(STEP_AHEAD, instances=[]) is NO_WINDOWS
    assert windows_of(instances=[]) is NO_WINDOWS


def test_an_outage_that_ended_later_than_now_was_skipped_as_well() -> None:
    instances = [
        an_instance("past", NOW, NOW, outage_from=NOW - HOUR),
        an_instance("to come", NOW + 1, NOW, outage_from=NOW - MINUTE),
        an_instance("none", NOW + 5, NOW),
    ]
    windows = windows_of(STEP_BACK, instances=instances)
    assert windows.skipped == (SkippedSpan(NOW - MINUTE, NOW + 1),)
