"""The table of moves answers what may follow what; classes of jobs and who may take them."""

import pytest

from ksana.base.errors import ConflictError
from ksana.domain import lifecycle
from ksana.domain.lifecycle import Lifecycle
from ksana.domain.queue.classes import Wants, accepts, class_of

LIGHT = Lifecycle(
    entity="light",
    initial=frozenset({"off"}),
    final=frozenset({"broken"}),
    moves=(("off", "press", "on"), ("on", "press", "off"), ("on", "break", "broken")),
)


@pytest.mark.spec("X2")
def test_a_lifecycle_knows_its_states_and_what_leads_where() -> None:
    assert LIGHT.states == {"off", "on", "broken"}
    assert LIGHT.pairs == {("off", "on"), ("on", "off"), ("on", "broken")}
    assert (LIGHT.sources("off"), LIGHT.sources("broken")) == ({"on"}, {"on"})
    assert (LIGHT.targets("on"), LIGHT.targets("broken")) == ({"off", "broken"}, frozenset())
    assert LIGHT.allows("off", "on")
    assert not LIGHT.allows("off", "broken")


@pytest.mark.spec("X2")
def test_a_lifecycle_is_made_of_rows() -> None:
    moves = lifecycle._moves("boxed|off -press-> on|broken", "on -press-> off")
    assert moves == (
        ("boxed", "press", "on"),
        ("boxed", "press", "broken"),
        ("off", "press", "on"),
        ("off", "press", "broken"),
        ("on", "press", "off"),
    )
    made = Lifecycle("light", frozenset({"off"}), frozenset({"broken"}), moves)
    assert made.states == {"boxed", "off", "on", "broken"}
    assert made.pairs == {(old, new) for old, _, new in moves}


@pytest.mark.spec("X2")
def test_a_move_that_is_not_in_the_table_is_refused_with_what_is() -> None:
    LIGHT.require("off", "on")
    with pytest.raises(ConflictError) as caught:
        LIGHT.require("off", "broken")
    assert str(caught.value) == "light cannot go from off to broken; from off it may go to on"
    assert caught.value.extra["current"] == {"state": "off", "requested": "broken"}
    assert "nothing: it is final" in str(LIGHT.refuse("broken", "on"))
    LIGHT.require_change("on", "on")
    LIGHT.require_change("on", "off")
    for old, new in (("broken", "broken"), ("off", "broken")):
        with pytest.raises(ConflictError):
            LIGHT.require_change(old, new)


def test_every_table_is_read_row_by_row() -> None:
    for table in (lifecycle.RUN, lifecycle.JOB, lifecycle.GOV_JOB, lifecycle.NODE_JOB):
        assert table.moves
        assert all(len(move) == 3 and all(move) for move in table.moves)
        assert all("|" not in part for move in table.moves for part in move)
        assert table.initial | table.final <= table.states


def can(**capabilities: bool) -> frozenset[tuple[str, bool]]:
    return frozenset(capabilities.items())


@pytest.mark.spec("Q2")
@pytest.mark.parametrize(
    ("wants", "is_taken"),
    [
        (Wants(), False),  # nobody said that there is a GPU
        (Wants(capabilities=can(gpu_available=True)), True),
        (Wants(capabilities=can(gpu_available=False)), False),
        (Wants(capabilities=can(gpu_available=True, eu=False)), False),
        (Wants(capabilities=can(eu=True)), False),
        (Wants(addon_id="a", capabilities=can(gpu_available=True)), True),
        (Wants(addon_id="b", capabilities=can(gpu_available=True)), False),
        (Wants(job_types=frozenset({"t"}), capabilities=can(gpu_available=True)), True),
        (Wants(job_types=frozenset({"x"}), capabilities=can(gpu_available=True)), False),
        (Wants(max_cost_units=3, capabilities=can(gpu_available=True)), True),
        (Wants(max_cost_units=2, capabilities=can(gpu_available=True)), False),
    ],
)
def test_a_worker_takes_what_it_can_meet(wants: Wants, is_taken: bool) -> None:
    kind = class_of("a", "t", 3, ("eu", "gpu_required"))
    assert accepts(kind, wants) is is_taken


def test_classes_have_the_same_number_everywhere() -> None:
    kind = class_of("a", "t", 3, ("eu",))
    assert 0 <= kind.id < 2**63
    assert kind.id == 5_700_997_351_052_961_163
