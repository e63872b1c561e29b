"""How node jobs move, and what is a repeat."""

import pytest

from ksana.domain.lifecycle import NODE_JOB
from ksana.domain.nodes.moves import MOVES, Moved, NodeJobChange, attempt_after, judge
from ksana.domain.nodes.records import STATES


def change(name: str, attempt: int = 1, node_id: str = "") -> NodeJobChange:
    return NodeJobChange(name=name, attempt=attempt, node_id=node_id, keep_us=1)  # type: ignore[arg-type]


@pytest.mark.spec("N7")
def test_the_moves_are_those_of_the_lifecycle() -> None:
    assert {event for _, event, _ in NODE_JOB.moves} == set(MOVES)
    for name, move in MOVES.items():
        told = {(old, new) for old, event, new in NODE_JOB.moves if event == name}
        assert told == {(old, move.target) for old in move.sources}
    assert frozenset(STATES) == NODE_JOB.states


@pytest.mark.spec("N7", "X12")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", MOVES)
def test_what_happens_is_legal_and_what_is_legal_happens(state: str, name: str) -> None:
    result = judge(state, 1, "n", change(name))
    if result == "moved":
        NODE_JOB.require(state, MOVES[change(name).name].target)
    else:
        assert state not in MOVES[change(name).name].sources


@pytest.mark.spec("N7")
def test_a_repeat_of_a_move_is_a_repeat_also_when_the_job_went_on() -> None:
    assert judge("ACCEPTED", 1, "n", change("ack", 1, "n")) == "repeat"
    assert judge("RUNNING", 1, "n", change("ack", 1, "n")) == "repeat"
    assert judge("RELEASED", 1, "n", change("finish", 1, "n")) == "repeat"
    assert judge("FINISHED", 1, "n", change("again", 1)) == "illegal"
    assert judge("CREATED", 1, "", change("ack", 1)) == "illegal"


@pytest.mark.spec("N7")
def test_another_attempt_or_another_node_is_stale() -> None:
    assert judge("RUNNING", 2, "n", change("finish", 1, "n")) == "stale"
    assert judge("RUNNING", 2, "n", change("finish", 3, "n")) == "stale"
    assert judge("RUNNING", 2, "n", change("finish", 2, "m")) == "stale"
    assert judge("CREATED", 2, "", change("finish", 2, "n")) == "stale"
    assert judge("RUNNING", 2, "n", change("finish", 2)) == "moved"
    assert judge("CREATED", 2, "", change("dispatch", 2, "n")) == "moved"
    assert judge("DISPATCHED", 2, "n", change("dispatch", 2, "m")) == "stale"


def test_only_another_try_counts_the_attempt_up() -> None:
    assert attempt_after(change("again", 3)) == 4
    assert attempt_after(change("finish", 3)) == 3
    assert Moved(result="repeat").holds
    assert not Moved(result="stale").holds
