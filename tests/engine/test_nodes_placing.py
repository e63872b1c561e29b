"""How a slot is found and held, and how an attempt is recorded and sent."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import HOUR, MILLISECOND, SECOND
from ksana.domain.nodes.attempts import AttemptTimes
from ksana.domain.nodes.messages import Assign, encode_message
from ksana.domain.nodes.moves import Moved, NodeJobChange
from ksana.domain.nodes.records import Binding, JobError, JobProgress
from ksana.engine.nodes.dispatching import Dispatching
from ksana.engine.nodes.job_watch import HomeJob
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.placing import Placing
from ksana.ports.fabric import Created
from ksana.ports.inbox import Post
from tests.engine.nodes_world import Instance, NodesWorld, a_node, a_request

WAITS = a_request(wait_us=SECOND)


@pytest.fixture
def placing(one: Instance) -> Placing:
    return one.engine.placing


def see(instance: Instance, *nodes: Any) -> None:
    for node in nodes:
        instance.engine.view.put(node)


def asked(instance: Instance) -> list[str]:
    """The nodes that were asked for a slot, in order."""
    return [args[0] for name, args, _ in instance.fabric.calls if name == "reservations.reserve"]


# ---- a slot ----


async def test_a_slot_of_the_least_loaded_node_is_held_for_as_long_as_an_attempt_may_last(
    one: Instance, placing: Placing
) -> None:
    see(one, a_node("busy", running=1), a_node("free"))
    choice = await placing.reserve(WAITS, ())
    assert choice.node is one.engine.view.get("free")
    assert one.fabric.last("reservations.reserve") == ("free", "j", 2, "echo", 70 * SECOND)
    assert (one.held("free"), one.held("busy")) == (1, 1)
    await placing.reserve(a_request("k", timeout_us=5 * SECOND), ("free",))
    assert one.fabric.last("reservations.reserve") == ("busy", "k", 2, "echo", 15 * SECOND)


async def test_without_any_node_the_choice_says_that_none_is_connected(placing: Placing) -> None:
    choice = await placing.reserve(a_request(), ())
    assert (choice.node, choice.obstacles) == (None, {})
    assert choice.message("echo") == "no node is connected"


async def test_a_node_that_was_tried_or_has_other_labels_is_not_asked(
    one: Instance, placing: Placing
) -> None:
    see(one, a_node("tried"), a_node("other", labels={"zone": "b"}))
    choice = await placing.reserve(a_request(labels={"zone": "a"}), ())
    assert (choice.node, choice.obstacles) == (None, {"LABELS": 2})
    choice = await placing.reserve(a_request(), ("tried", "other"))
    assert (choice.node, choice.obstacles) == (None, {"TRIED": 2})
    assert asked(one) == []


async def test_a_refusal_is_believed_and_the_next_node_is_asked(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, *(a_node(name, load=load) for load, name in enumerate(("a", "b", "c", "d"))))
    one.fabric.answer("reservations.reserve", "full", "draining", "away")
    choice = await placing.reserve(WAITS, ())
    assert (asked(one), choice.node) == (["a", "b", "c", "d"], one.engine.view.get("d"))
    view = {node.node_id: node for node in one.engine.view}
    assert [node.running for node in view.values()] == [2, 0, 0, 1]
    assert [node.is_draining for node in view.values()] == [False, True, False, False]
    assert [node.away for node in view.values()] == [
        {},
        {},
        {"echo": clock.now() + 5 * SECOND},
        {},
    ]


async def test_a_model_that_is_away_does_not_bring_another_one_back(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, a_node("n", away={"other": 1}))
    one.fabric.answer("reservations.reserve", "away")
    choice = await placing.reserve(WAITS, ())
    assert (choice.node, choice.obstacles) == (None, {"MODEL_AWAY": 1})
    node = one.engine.view.get("n")
    assert node is not None
    assert node.away == {"other": 1, "echo": clock.now() + 5 * SECOND}


async def test_a_node_that_left_the_view_while_it_was_asked_is_not_believed_anything(
    one: Instance, placing: Placing
) -> None:
    see(one, a_node("n"))

    def refuse(node_id: str, *_: Any) -> str:
        one.engine.view.remove(node_id)
        return "full"

    one.fabric.answer("reservations.reserve", refuse)
    choice = await placing.reserve(WAITS, ())
    assert (choice.node, choice.obstacles) == (None, {})


async def test_no_more_than_sixteen_nodes_are_asked_in_one_go(
    one: Instance, placing: Placing
) -> None:
    see(one, *(a_node(f"n{number}") for number in range(20)))
    one.fabric.answer("reservations.reserve", *(["full"] * 16))
    choice = await placing.reserve(WAITS, ())
    assert (len(set(asked(one))), choice.node) == (16, None)
    assert choice.obstacles == {"NO_SLOT": 15}


async def test_nodes_that_vanish_one_after_the_other_count_as_full(
    one: Instance, placing: Placing
) -> None:
    see(one, *(a_node(f"n{number}") for number in range(20)))

    def refuse(node_id: str, *_: Any) -> str:
        one.engine.view.remove(node_id)
        return "full"

    one.fabric.answer("reservations.reserve", *([refuse] * 16))
    choice = await placing.reserve(WAITS, ())
    assert (choice.node, choice.obstacles) == (None, {"NO_SLOT": 16})


async def test_one_that_does_not_wait_asks_full_nodes_once_more_a_moment_later(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, a_node("a"), a_node("b", load=1.0))
    one.fabric.answer("reservations.reserve", "full", "full", "full")
    work = asyncio.create_task(placing.reserve(a_request(), ()))
    await clock.advance(20 * MILLISECOND - 1)
    assert asked(one) == ["a", "b"]
    await clock.advance(1)
    choice = await work
    assert (asked(one), choice.node) == (["a", "b", "a", "b"], one.engine.view.get("b"))
    assert (one.held("a"), one.held("b")) == (2, 3)


async def test_one_that_does_not_wait_asks_four_full_nodes_again_at_most(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, *(a_node(f"n{number}", load=float(number)) for number in range(5)))
    one.fabric.answer("reservations.reserve", *(["full"] * 9))
    work = asyncio.create_task(placing.reserve(a_request(), ()))
    await clock.advance(SECOND)
    choice = await work
    assert asked(one)[5:] == ["n0", "n1", "n2", "n3"]
    assert (choice.node, choice.obstacles) == (None, {"NO_SLOT": 5})


async def test_one_that_waits_does_not_ask_again(one: Instance, placing: Placing) -> None:
    see(one, a_node("a"))
    one.fabric.answer("reservations.reserve", "full")
    choice = await placing.reserve(WAITS, ())
    assert (asked(one), choice.node, choice.obstacles) == (["a"], None, {"NO_SLOT": 1})


async def test_a_slot_of_which_nobody_knows_whether_it_is_held_is_given_back(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, a_node("a"))
    one.fabric.broken.add("reservations.reserve")
    with pytest.raises(DependencyDownError):
        await placing.reserve(WAITS, ())
    assert one.held("a") == 1
    await clock.settle()
    assert one.held("a") == 0
    assert one.fabric.last("reservations.release") == ("a", "j")


# ---- a slot together with the binding of a request ----

FIRST = Binding(job_id="j", digest="d", instance_id="one")


@pytest.mark.parametrize(
    ("slots", "running", "is_asked"),
    [(1, 0, False), (2, 0, True), (2, 1, False), (3, 1, False), (4, 1, True), (4, 2, False)],
)
async def test_a_slot_is_asked_for_in_advance_only_where_half_of_them_stay_free(
    one: Instance, placing: Placing, slots: int, running: int, is_asked: bool
) -> None:
    see(one, a_node("n", slots=slots, running=running))
    bound, node = await placing.bind(a_request(), "r", FIRST)
    assert (bound, node) == (FIRST, one.engine.view.get("n") if is_asked else None)
    assert one.held("n") == running + is_asked
    assert await one.fabric.reservations.count("n") == int(is_asked)
    assert await one.fabric.requests.find("r") == FIRST
    method = "requests.bind_and_reserve" if is_asked else "requests.bind"
    assert one.fabric.last(method)[:3] == ("r", FIRST, HOUR)


async def test_without_a_node_a_request_is_only_bound(one: Instance, placing: Placing) -> None:
    assert await placing.bind(a_request(), "r", FIRST) == (FIRST, None)
    assert one.fabric.count("requests.bind_and_reserve") == 0


@pytest.mark.spec("N8")
async def test_a_repeat_gives_its_slot_back_and_none_is_asked_for_in_advance_for_a_second(
    one: Instance, two: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, a_node("n", slots=8))
    heard: list[str] = []
    two.fabric.signals.subscribe("nodes.free", heard.append)
    await one.fabric.requests.bind("r", FIRST, HOUR)
    again = Binding(job_id="k", digest="d", instance_id="one")
    assert await placing.bind(a_request("k"), "r", again) == (FIRST, None)
    await clock.settle()
    assert (one.held("n"), await one.fabric.reservations.count("n"), heard) == (0, 0, [""])
    for rest_us, is_asked in ((SECOND - 1, False), (1, True)):
        await clock.advance(rest_us)
        later = Binding(job_id=f"l{rest_us}")
        _, node = await placing.bind(a_request(later.job_id), f"r{rest_us}", later)
        assert (one.fabric.count("requests.bind_and_reserve") == 2) is is_asked
    assert node is one.engine.view.get("n")


async def test_a_slot_that_was_not_given_in_advance_is_not_counted(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, a_node("n", slots=8))
    one.fabric.answer("requests.bind_and_reserve", (FIRST, "full"), (FIRST, None))
    for _ in range(2):
        assert await placing.bind(a_request(), "r", FIRST) == (FIRST, None)
    await clock.settle()
    assert one.held("n") == 0
    assert one.fabric.count("reservations.release") == 0
    assert one.fabric.count("requests.bind_and_reserve") == 2


async def test_a_binding_that_failed_gives_back_the_slot_that_may_be_held(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, a_node("n", slots=8))
    one.fabric.broken.add("requests.bind_and_reserve")
    with pytest.raises(DependencyDownError):
        await placing.bind(a_request(), "r", FIRST)
    await clock.settle()
    assert one.held("n") == 0
    assert one.fabric.last("reservations.release") == ("n", "j")


# ---- giving back, holding again ----


async def test_a_slot_is_given_back_as_soon_as_the_fabric_is_back(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    see(one, a_node("n", running=1))
    one.fabric.is_away = True
    work = asyncio.create_task(placing.release("n", "j"))
    await clock.advance(3 * SECOND - 1)
    assert (one.held("n"), one.fabric.count("reservations.release")) == (0, 3)
    one.fabric.is_away = False
    await clock.advance(1)
    await work
    assert one.fabric.count("reservations.release") == 4


async def test_a_slot_that_has_run_out_by_itself_is_not_given_back_any_more(
    one: Instance, placing: Placing, clock: VirtualClock
) -> None:
    one.fabric.is_away = True
    work = asyncio.create_task(placing.free("n", "j"))
    await clock.advance(60 * SECOND - 1)
    assert not work.done()
    await clock.advance(1)
    with pytest.raises(DependencyDownError):
        await work
    assert one.fabric.count("reservations.release") == 61


async def test_a_slot_is_held_again_where_the_node_is_known(
    one: Instance, placing: Placing
) -> None:
    see(one, a_node("n", running=1))
    await placing.hold(a_request(), "n")
    await placing.hold(a_request(), "gone")
    assert (asked(one), one.held("n")) == (["n"], 1)
    assert await one.fabric.reservations.count("n") == 1


# ---- an attempt, recorded and sent ----

ERROR = JobError(code="NO_ACK")
LIFE = 10 * SECOND + 3 * 60 * SECOND + HOUR


@pytest.fixture
def dispatching(one: Instance) -> Dispatching:
    return Dispatching(one.fabric, one.clock, one.engine.courier, NodeParameters())


def second_attempt(**changes: Any) -> HomeJob:
    job = HomeJob(a_request(wait_us=10 * SECOND, **changes), 0)
    job.attempt = 2
    job.progress = JobProgress(tried=("m",), failures=1, last_error=ERROR, dispatched_at=1)
    return job


def test_an_attempt_is_noted_with_its_node_and_its_time(
    dispatching: Dispatching, clock: VirtualClock
) -> None:
    job = second_attempt()
    change = dispatching.begin(job, a_node("n"))
    progress = JobProgress(
        tried=("m", "n"), failures=1, last_error=ERROR, dispatched_at=clock.now()
    )
    assert change == NodeJobChange(
        name="dispatch", attempt=2, node_id="n", keep_us=LIFE, progress=progress
    )
    assert (job.node_id, job.instance_id, job.progress) == ("n", "two", progress)
    assert job.times == AttemptTimes(dispatched_at=clock.now())


def test_an_attempt_is_told_to_the_instance_of_its_node_with_its_deadline(
    dispatching: Dispatching, clock: VirtualClock
) -> None:
    job = second_attempt(timeout_us=7 * SECOND)
    dispatching.begin(job, a_node("n"))
    told = Assign(
        node_id="n",
        attempt=2,
        home="one",
        deadline_at=clock.now() + 7 * SECOND,
        request=job.request,
    )
    assert dispatching.post(job) == Post("two", encode_message(told))
    dispatching.begin(job, a_node("n", "one"))
    assert dispatching.post(job) is None


def test_a_record_lives_as_long_as_all_attempts_may_last(dispatching: Dispatching) -> None:
    assert dispatching.life(second_attempt()) == LIFE
    assert dispatching.life(second_attempt(timeout_us=SECOND)) == 13 * SECOND + HOUR


@pytest.mark.parametrize("instance_id", ["one", "two"])
async def test_an_attempt_of_a_job_that_waited_is_recorded_and_sent_if_its_node_is_elsewhere(
    one: Instance, two: Instance, dispatching: Dispatching, instance_id: str
) -> None:
    job = HomeJob(a_request(), 0)
    await one.fabric.jobs.create(job.request, "one", HOUR)
    change = dispatching.begin(job, a_node("n", instance_id))
    written = await dispatching.write(job, change)
    is_elsewhere = instance_id == "two"
    assert written == (Moved("moved", "DISPATCHED", 1), "sent" if is_elsewhere else None)
    assert await two.take_messages() == ([dispatching.assignment(job)] if is_elsewhere else [])


@pytest.mark.spec("X3")
async def test_an_attempt_whose_record_was_wiped_is_written_anew(
    one: Instance, dispatching: Dispatching
) -> None:
    job = HomeJob(a_request(wait_us=10 * SECOND), 0)
    change = dispatching.begin(job, a_node("n", "one"))
    assert await dispatching.write(job, change) == (Moved("moved", "DISPATCHED", 1), None)
    record = await one.fabric.jobs.find("j")
    assert record is not None
    assert (record.home, record.node_id, record.state) == ("one", "n", "DISPATCHED")
    assert one.fabric.last("jobs.create")[2] == LIFE


async def test_an_attempt_whose_record_another_instance_wrote_meanwhile_is_stale(
    one: Instance, dispatching: Dispatching, cluster: NodesWorld
) -> None:
    job = HomeJob(a_request(), 0)
    change = dispatching.begin(job, a_node("n", "one"))
    one.fabric.answer("jobs.move", Moved("missing"))
    one.fabric.answer("jobs.create", Created(is_new=False, state="RUNNING", attempt=4))
    assert await dispatching.write(job, change) == (Moved("stale", "RUNNING", 4), None)
