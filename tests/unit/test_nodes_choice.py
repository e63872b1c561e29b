"""Which node gets a job, and why none does."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.domain.nodes.choice import Wanted, choose, find_obstacle
from ksana.domain.nodes.records import NodeRecord

NOW = 1_000_000


def node(name: str = "n", **members: object) -> NodeRecord:
    plain = NodeRecord(node_id=name, instance_id="i", slots=2, models=("echo",))
    return msgspec.structs.replace(plain, **members)


@pytest.mark.spec("N5")
@pytest.mark.parametrize(
    ("members", "obstacle"),
    [
        ({}, None),
        ({"models": ("sum",)}, "NO_MODEL"),
        ({"labels": {"gpu": "no"}}, "LABELS"),
        ({"labels": {}}, "LABELS"),
        ({"is_draining": True}, "DRAINING"),
        ({"away": {"echo": NOW + 1}}, "MODEL_AWAY"),
        ({"away": {"echo": NOW, "sum": NOW + 1}}, None),
        ({"running": 2}, "NO_SLOT"),
        ({"node_id": "tried"}, "TRIED"),
    ],
)
def test_each_condition_is_an_obstacle_by_itself(
    members: dict[str, object], obstacle: str | None
) -> None:
    wanted = Wanted(model="echo", labels={"gpu": "yes"}, tried=("tried",))
    plain = {"labels": {"gpu": "yes", "zone": "a"}}
    assert find_obstacle(node(**{**plain, **members}), wanted, NOW) == obstacle


@pytest.mark.spec("N5")
def test_the_least_loaded_node_is_chosen_by_share_of_its_slots() -> None:
    nodes = [
        node("half", running=1),
        node("large", slots=10, running=2),
        node("full", running=2),
        node("large-but-busy", slots=10, running=2, load=0.9),
    ]
    choice = choose(nodes, Wanted(model="echo"), NOW)
    assert choice.node is not None
    assert choice.node.node_id == "large"


@pytest.mark.spec("N5")
def test_equals_share_the_jobs_and_every_instance_decides_alike() -> None:
    nodes = [node(f"n{number}") for number in range(4)]
    counts: dict[str, int] = {}
    for job in range(400):
        wanted = Wanted(model="echo", key=f"job-{job}")
        first, second = choose(nodes, wanted, NOW), choose(nodes[::-1], wanted, NOW)
        assert first.node is not None
        assert first.node == second.node
        counts[first.node.node_id] = counts.get(first.node.node_id, 0) + 1
    assert len(counts) == 4
    assert min(counts.values()) > 60


@pytest.mark.spec("N5")
def test_instances_of_two_versions_choose_alike() -> None:
    nodes = [node(f"n{number}") for number in range(4)]
    chosen = [choose(nodes, Wanted(model="echo", key=f"job-{job}"), NOW).node for job in range(8)]
    names = [one.node_id for one in chosen if one is not None]
    assert names == ["n2", "n2", "n2", "n2", "n0", "n2", "n1", "n3"]


@pytest.mark.spec("N5")
def test_when_there_is_none_the_reasons_are_told() -> None:
    nodes = [node("a", running=2), node("b", is_draining=True), node("c", models=())]
    choice = choose(nodes, Wanted(model="echo"), NOW)
    assert choice.node is None
    assert choice.obstacles == {"NO_SLOT": 1, "DRAINING": 1, "NO_MODEL": 1}
    assert choice.message("echo") == (
        "no node can take a job for model 'echo': one node without a free slot, "
        "one node draining, one node without the model"
    )
    assert choose([], Wanted(model="echo"), NOW).message("echo") == "no node is connected"


@pytest.mark.spec("N5")
@given(
    st.lists(
        st.builds(
            node,
            name=st.sampled_from("abcdef"),
            slots=st.integers(1, 4),
            running=st.integers(0, 5),
            load=st.floats(0, 1),
            is_draining=st.booleans(),
            models=st.sampled_from([("echo",), (), ("sum", "echo")]),
        )
    )
)
def test_the_choice_can_take_the_job_and_nobody_who_can_is_less_loaded(
    nodes: list[NodeRecord],
) -> None:
    wanted = Wanted(model="echo", tried=("a",), key="j")
    choice = choose(nodes, wanted, NOW)
    able = [one for one in nodes if find_obstacle(one, wanted, NOW) is None]
    assert (choice.node is None) == (not able)
    if choice.node is not None:
        assert choice.node in able
        best = min(one.running / one.slots for one in able)
        assert choice.node.running / choice.node.slots == best
    assert sum(choice.obstacles.values()) == len(nodes) - len(able)
