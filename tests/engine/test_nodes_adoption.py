"""What a dead instance left: its jobs, its inbox, its place in the list."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.nodes.messages import Drain, Rehome, encode_message
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import JobProgress
from ksana.engine.nodes.adoption import Adoption
from tests.engine.nodes_desk import OUTCOME, finished, told
from tests.engine.nodes_world import Instance, NodesWorld, Socket, a_node, a_request, step
from tests.ground.logs import capture_logs


class Heir:
    """One survives, two hosts nodes, dead leaves jobs behind. The session is at one."""

    def __init__(self, cluster: NodesWorld, one: Instance, two: Instance, dead: Instance) -> None:
        self.cluster, self.one, self.two, self.dead = cluster, one, two, dead
        self.adoption: Adoption = one.engine.adoption
        self.session: Socket

    async def leave(self, job_id: str = "j", node_id: str = "n", **changes: Any) -> None:
        """A job of the dead instance; without a node it waits."""
        change = None
        if node_id:
            change = NodeJobChange(
                name="dispatch",
                attempt=1,
                keep_us=HOUR,
                node_id=node_id,
                progress=JobProgress(tried=(node_id,)),
            )
            await self.dead.fabric.reservations.reserve(node_id, job_id, 9, "echo", HOUR)
        await self.dead.fabric.jobs.create(a_request(job_id, **changes), "dead", HOUR, change)

    async def look(self) -> None:
        self.cluster.hub.presence.pop("dead")
        with capture_logs():
            assert await step(self.adoption.pump) is None
        await self.one.clock.settle()

    async def record(self, job_id: str = "j") -> Any:
        return await self.one.fabric.jobs.find(job_id)


@pytest.fixture
async def heir(cluster: NodesWorld, one: Instance, two: Instance) -> Heir:
    heir = Heir(cluster, one, two, await cluster.start("dead"))
    heir.session = await one.session("s")
    one.engine.view.put(a_node("n", "two", slots=9))
    return heir


# ---- who is dead ----


@pytest.mark.spec("N1", "N9")
async def test_a_dead_instance_without_work_is_forgotten(heir: Heir) -> None:
    assert (heir.adoption.adopted, heir.adoption.drained) == (0, 0)
    await heir.look()
    assert await heir.one.fabric.presence.list_dead() == []
    assert await heir.one.fabric.inbox.send("dead", b"x") == "gone"
    assert heir.adoption.pump.name == "node-adoption"


async def test_taking_over_is_logged_with_whose_it_was(heir: Heir) -> None:
    with capture_logs() as logs:
        await heir.adoption.take_over("dead")
    assert [(line["log_level"], line["instance"]) for line in logs] == [("info", "dead")]


@pytest.mark.parametrize("doubt", ["we are dead too", "we may not judge", "another one drains"])
async def test_in_doubt_nothing_is_taken_over(heir: Heir, doubt: str) -> None:
    await heir.leave()
    if doubt == "we are dead too":
        heir.cluster.hub.presence.pop("one")
    elif doubt == "we may not judge":
        heir.one.fabric.ok_us = 0
    else:
        await heir.two.fabric.inbox.begin_drain("dead", MINUTE)
    await heir.look()
    assert (heir.one.home.jobs, (await heir.record()).home) == ({}, "dead")
    assert "dead" in await heir.one.fabric.presence.list_dead()


async def test_every_dead_instance_is_looked_at(heir: Heir) -> None:
    other = await heir.cluster.start("other")
    heir.cluster.hub.presence.pop("other")
    await heir.two.fabric.inbox.begin_drain("dead", MINUTE)
    await heir.look()
    assert await heir.one.fabric.presence.list_dead() == ["dead"]
    assert other.name not in heir.cluster.hub.mailboxes


# ---- jobs ----


@pytest.mark.spec("N12")
async def test_an_attempt_on_a_node_that_lives_goes_on_under_its_heir(
    heir: Heir, clock: VirtualClock
) -> None:
    await heir.leave()
    await heir.look()
    job = heir.one.home.jobs["j"]
    assert (job.attempt, job.node_id, job.instance_id) == (1, "n", "two")
    assert (await heir.record()).home == "one"
    assert await heir.two.take_messages() == [
        Rehome(node_id="n", job_id="j", attempt=1, home="one")
    ]
    assert await step(heir.one.home.watch.deadlines) == clock.now() + 10 * SECOND
    assert (heir.adoption.adopted, heir.session.frames) == (1, [])
    assert heir.one.fabric.last("jobs.adopt_if") == ("j", "dead", HOUR)
    assert await heir.one.fabric.jobs.list_homed("dead", 10) == []
    assert await heir.one.fabric.jobs.list_homed("one", 10) == ["j"]


@pytest.mark.parametrize("case", ["unknown", "of the dead"])
async def test_an_attempt_whose_node_died_with_the_instance_is_made_again(
    heir: Heir, case: str
) -> None:
    await heir.leave(node_id="lost", wait_us=MINUTE, created_at=heir.one.clock.now())
    if case == "of the dead":
        heir.one.engine.view.put(a_node("lost", "dead"))
    await heir.look()
    job = heir.one.home.jobs["j"]
    assert (job.attempt, job.node_id, job.progress.tried) == (2, "n", ("lost", "n"))
    assert job.progress.last_error is not None
    assert job.progress.last_error.code == "INSTANCE_GONE"
    assert heir.one.fabric.last("jobs.adopt_if") == ("j", "dead", MINUTE + HOUR)


async def test_a_job_that_waited_there_goes_on_waiting_or_to_a_node(heir: Heir) -> None:
    now = heir.one.clock.now()
    await heir.leave("a", "", wait_us=MINUTE, created_at=now)
    await heir.leave("b", "", wait_us=MINUTE, created_at=now, model="other")
    await heir.look()
    assert heir.one.home.jobs["a"].node_id == "n"
    assert [job.job_id for job in heir.one.home.watch.line.in_order()] == ["b"]
    assert heir.adoption.adopted == 2


@pytest.mark.parametrize("is_released", [True, False])
async def test_an_outcome_that_the_dead_may_not_have_told_is_told(
    heir: Heir, is_released: bool
) -> None:
    await heir.leave()
    end = NodeJobChange(name="finish", attempt=1, keep_us=HOUR, node_id="n", outcome=OUTCOME)
    await heir.dead.fabric.jobs.move("j", end)
    if is_released:
        release = NodeJobChange(name="release", attempt=1, keep_us=HOUR)
        await heir.dead.fabric.jobs.move("j", release)
        heir.cluster.hub.homed["dead"] = {"j": None}
    await heir.look()
    assert (heir.session.frames, heir.one.home.jobs) == ([told()], {})
    assert heir.one.fabric.count("reservations.release") == (0 if is_released else 1)
    assert heir.one.fabric.count("jobs.move") == (0 if is_released else 1)
    assert ((await heir.record()).state, heir.adoption.adopted) == ("RELEASED", 0)
    if not is_released:
        assert heir.one.fabric.last("reservations.release") == ("n", "j")


async def test_a_job_that_is_gone_or_has_another_home_is_not_adopted(heir: Heir) -> None:
    await heir.leave("taken")
    await heir.two.fabric.jobs.adopt_if("taken", "dead", HOUR)
    heir.cluster.hub.homed["dead"]["vanished"] = None
    await heir.look()
    assert (heir.one.home.jobs, heir.adoption.adopted) == ({}, 0)
    assert await heir.one.fabric.presence.list_dead() == []


# ---- the inbox ----


@pytest.mark.spec("N9", "N12")
async def test_an_outcome_in_the_inbox_of_the_dead_is_told_and_nothing_is_done_again(
    heir: Heir,
) -> None:
    await heir.leave(node_id="lost")
    message = encode_message(finished(node_id="lost"))
    await heir.two.fabric.inbox.send("dead", message)
    await heir.look()
    assert (heir.session.frames, heir.one.home.jobs) == ([told()], {})
    assert (heir.adoption.drained, heir.adoption.adopted) == (1, 1)
    assert await heir.one.fabric.presence.list_dead() == []


async def test_an_attempt_that_moved_on_while_the_inbox_was_read_is_left_there(
    heir: Heir,
) -> None:
    await heir.leave(node_id="n", wait_us=MINUTE, created_at=heir.one.clock.now())
    heir.one.engine.view.put(a_node("m", "two"))

    async def drain(*_: Any) -> list[Any]:
        await heir.one.home.fail("j", 1, "NODE_GONE")
        return []

    heir.one.fabric.answer("inbox.drain", drain)
    await heir.look()
    assert heir.one.home.jobs["j"].attempt == 2
    assert not any(isinstance(one, Rehome) for one in await heir.two.take_messages())


async def test_a_message_that_cannot_be_handled_keeps_the_inbox(heir: Heir) -> None:
    await heir.two.fabric.inbox.send("dead", b"garbage")
    for _ in range(3):
        await heir.two.fabric.inbox.send("dead", encode_message(Drain(node_id="x")))
    heir.one.fabric.answer("inbox.end_drain", False)
    await heir.look()
    assert heir.adoption.drained == 3
    assert await heir.one.fabric.presence.list_dead() == ["dead"]


async def test_whoever_lost_the_right_to_drain_stops_there(heir: Heir) -> None:
    await heir.two.fabric.inbox.send("dead", encode_message(Drain(node_id="x")))
    heir.one.fabric.answer("inbox.begin_drain", True, False)
    await heir.look()
    assert (heir.adoption.drained, heir.one.fabric.count("inbox.drain")) == (0, 0)
    assert await heir.one.fabric.presence.list_dead() == ["dead"]


async def test_the_right_to_drain_is_kept_up_for_fifteen_seconds_at_a_time(heir: Heir) -> None:
    await heir.leave()
    await heir.look()
    calls = [args for name, args, _ in heir.one.fabric.calls if name == "inbox.begin_drain"]
    assert calls == [("dead", 15 * SECOND)] * 3  # to begin, after the jobs, for the inbox
