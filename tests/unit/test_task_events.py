"""The catalogue of events of tasks and runs."""

import msgspec
import pytest

from ksana.domain.explain import EVENTS
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks.events import KINDS
from ksana.ports.events import Event
from tests.engine.tasks_world import assert_is_declared

pytestmark = pytest.mark.spec("X11")


def an_event(name: str, data: bytes, entity: str = "RUN") -> Event:
    return Event(1, 1, entity, "1", name, msgspec.Raw(data))


def test_every_kind_is_there_once_and_explain_has_words_for_it() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names))
    assert set(names) == set(EVENTS)


def test_every_state_a_run_can_get_into_has_an_event() -> None:
    names = {kind.name for kind in KINDS}
    assert {f"RUN_{state}" for state in RUN.states - {"RUNNING"}} <= names


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("RUN_INVENTED", b"{}"),
        ("RUN_PROMOTED", b'{"task_id":1}'),
        ("RUN_PROMOTED", b'{"task_id":1,"reason":"TURN_CAME","mood":"good"}'),
    ],
)
def test_an_event_that_is_not_as_declared_is_noticed(name: str, data: bytes) -> None:
    with pytest.raises(AssertionError):
        assert_is_declared(an_event(name, data))


def test_an_event_as_declared_passes() -> None:
    assert_is_declared(an_event("RUN_PROMOTED", b'{"task_id":1,"reason":"TURN_CAME"}'))
