"""Nodes: the view of all nodes, sockets, attempts, and the table of the jobs in our charge."""

import asyncio
from typing import Any

import msgspec
import pytest

from ksana.domain.nodes.attempts import AttemptTimes
from ksana.domain.nodes.choice import Wanted
from ksana.domain.nodes.frames import Ping
from ksana.domain.nodes.records import JobRequest, NodeJob, NodeRecord
from ksana.engine.nodes.assignments import Assignment, HostedNode
from ksana.engine.nodes.job_watch import HomeJob, HomeJobTable, RecentIds, times_of
from ksana.engine.nodes.peers import Peer
from ksana.engine.nodes.view import NodeView

NOW = 1_000_000


def a_node(node_id: str, slots: int = 2, running: int = 0, *models: str) -> NodeRecord:
    return NodeRecord(
        node_id=node_id,
        instance_id="i",
        slots=slots,
        running=running,
        models=models or ("echo",),
    )


def a_job(job_id: str, payload: bytes = b"{}") -> HomeJob:
    request = JobRequest(job_id=job_id, model="echo", payload=msgspec.Raw(payload))
    return HomeJob(request, NOW)


# ---- the view ----


def chosen(view: NodeView, model: str = "echo") -> str | None:
    node = view.choose(Wanted(model=model, key="k"), NOW).node
    return None if node is None else node.node_id


def test_the_view_knows_the_nodes_that_were_put_in_and_not_removed() -> None:
    view = NodeView()
    one, two = a_node("one"), a_node("two")
    view.put(one)
    view.put(two)
    assert (len(view), list(view), view.get("one")) == (2, [one, two], one)
    assert view.remove("one") is one
    assert view.remove("one") is None
    assert (len(view), list(view), view.get("one")) == (1, [two], None)
    assert chosen(view) == "two"


def test_nodes_may_be_removed_from_the_view_while_it_is_walked() -> None:
    view = NodeView()
    for name in ("a", "b", "c"):
        view.put(a_node(name))
    for node in view:
        view.remove(node.node_id)
    assert len(view) == 0


def test_a_node_is_chosen_only_for_models_that_it_has_now() -> None:
    view = NodeView()
    view.put(a_node("n", 2, 0, "old", "kept"))
    view.put(a_node("n", 2, 0, "kept", "new"))
    assert [chosen(view, model) for model in ("old", "kept", "new")] == [None, "n", "n"]
    view.remove("n")
    assert [chosen(view, model) for model in ("old", "kept", "new")] == [None, None, None]


def test_a_node_that_leaves_a_model_leaves_the_others_that_have_it() -> None:
    view = NodeView()
    view.put(a_node("a"))
    view.put(a_node("b"))
    view.put(a_node("a", 2, 0, "other"))
    assert chosen(view) == "b"
    assert view.choose(Wanted(model="echo"), NOW).obstacles == {}
    view.put(a_node("b", 2, 0, "other"))
    assert chosen(view) is None
    view.put(a_node("a"))
    assert chosen(view) == "a"


def test_a_choice_that_finds_nothing_names_the_obstacles_of_all_nodes_once() -> None:
    view = NodeView()
    view.put(a_node("full", 1, 1))
    view.put(a_node("b", 1, 0, "other"))
    view.put(a_node("c", 1, 0, "other"))
    choice = view.choose(Wanted(model="echo"), NOW)
    assert (choice.node, choice.obstacles) == (None, {"NO_SLOT": 1, "NO_MODEL": 2})


def test_a_choice_that_finds_a_node_looks_only_at_those_with_the_model() -> None:
    view = NodeView()
    view.put(a_node("b", 1, 0, "other"))
    view.put(a_node("full", 1, 1))
    view.put(a_node("free", 1, 0))
    choice = view.choose(Wanted(model="echo"), NOW)
    assert (chosen(view), choice.obstacles) == ("free", {"NO_SLOT": 1})


def test_slots_are_counted_and_never_below_none() -> None:
    view = NodeView()
    node = a_node("n")
    view.put(node)
    seen = []
    for change in (1, 1, -1, -1, -1):
        view.count("n", change)
        seen.append(node.running)
    assert seen == [1, 2, 1, 0, 0]
    view.count("unknown", 1)


@pytest.mark.parametrize(("running", "filled"), [(0, 2), (2, 2), (3, 3)])
def test_a_node_that_is_full_has_as_many_jobs_as_slots_at_least(running: int, filled: int) -> None:
    view = NodeView()
    node = a_node("n", 2, running)
    view.put(node)
    view.fill("n")
    view.fill("unknown")
    assert node.running == filled


# ---- sockets ----


class Kept:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: list[tuple[int, str]] = []

    def send(self, frame: bytes) -> bool:
        self.sent.append(frame)
        return len(self.sent) < 2

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))


def test_a_peer_that_sends_something_lives_and_all_who_asked_are_told() -> None:
    peer = Peer(Kept(), 5, "key")
    assert (peer.heard_mono, peer.key_id, peer.is_open, peer.is_pinged) == (5, "key", True, False)
    probes = [asyncio.Event(), asyncio.Event()]
    peer.probes.extend(probes)
    peer.is_pinged = True
    peer.hear(9)
    assert (peer.heard_mono, peer.is_pinged, peer.probes) == (9, False, [])
    assert [probe.is_set() for probe in probes] == [True, True]


def test_a_closed_peer_takes_no_frames_and_is_closed_once() -> None:
    kept = Kept()
    peer = Peer(kept, 0)
    assert [peer.send(Ping(id="a")), peer.send(Ping(id="b"))] == [True, False]
    peer.close(4009, "REPLACED")
    peer.close(4011, "SILENT")
    assert peer.send(Ping(id="c")) is False
    assert kept.closed == [(4009, "REPLACED")]
    assert kept.sent == [b'{"type":"ping","id":"a"}', b'{"type":"ping","id":"b"}']
    assert not peer.is_open


# ---- attempts here ----


@pytest.mark.parametrize(
    ("acked_at", "started_at", "state"),
    [(0, 0, ""), (5, 0, "ACCEPTED"), (5, 6, "RUNNING"), (0, 6, "RUNNING")],
)
def test_an_attempt_is_as_far_as_its_node_said(acked_at: int, started_at: int, state: str) -> None:
    assignment = Assignment(a_job("j").request, 2, "home")
    assert (assignment.state, assignment.told, assignment.is_ending) == ("", "", False)
    assignment.acked_at, assignment.started_at = acked_at, started_at
    assert assignment.state == state


def test_a_node_is_full_with_as_many_attempts_as_slots() -> None:
    hosted = HostedNode(a_node("n", 2), Peer(Kept(), 0))
    seen = []
    for name in ("a", "b", "c"):
        seen.append(hosted.is_full)
        hosted.assigned[name] = Assignment(a_job(name).request, 1, "home")
    assert [*seen, hosted.is_full] == [False, False, True, True]


# ---- jobs in our charge ----


def test_a_new_job_in_our_charge_is_at_its_first_attempt_and_nowhere() -> None:
    job = a_job("j")
    assert (job.attempt, job.node_id, job.instance_id, job.wait_until) == (1, "", "", NOW)
    assert (job.is_moving, job.is_ending, job.early) == (False, False, None)
    assert job.times == AttemptTimes(dispatched_at=0)


def test_the_table_knows_how_many_bytes_the_payloads_take() -> None:
    jobs = HomeJobTable()
    seen = []

    def note() -> None:
        seen.append(jobs.payload_bytes)

    jobs["a"] = a_job("a", b"[1,2]")
    note()
    jobs["b"] = a_job("b", b"[]")
    note()
    jobs["a"] = a_job("a", b"[1]")  # in place of the other
    note()
    del jobs["b"]
    note()
    assert jobs.pop("b", None) is None
    note()
    last = jobs["a"]
    assert jobs.pop("a") is last
    note()
    assert (seen, dict(jobs)) == ([5, 7, 5, 3, 3, 0], {})
    with pytest.raises(KeyError):
        del jobs["a"]


def test_an_id_is_new_once_as_long_as_it_is_among_the_last_ones() -> None:
    recent = RecentIds(most=2)
    assert [recent.add(one) for one in ("a", "a", "b", "a", "c", "b", "c", "a")] == [
        *(True, False),
        *(True, False),
        *(True, False, False),
        True,  # forgotten: two others came after it
    ]


@pytest.mark.parametrize(
    ("state", "times"),
    [
        ("CREATED", AttemptTimes(dispatched_at=NOW)),
        ("DISPATCHED", AttemptTimes(dispatched_at=NOW)),
        ("ACCEPTED", AttemptTimes(dispatched_at=NOW, acked_at=NOW)),
        ("RUNNING", AttemptTimes(dispatched_at=NOW, acked_at=NOW, started_at=NOW)),
    ],
)
def test_an_inherited_attempt_has_all_its_time_again(state: Any, times: AttemptTimes) -> None:
    record = NodeJob(request=a_job("j").request, state=state, attempt=3, node_id="n", home="h")
    assert times_of(record, NOW) == times
