"""Messages between instances that nobody could handle, as dead letters: found at all who keep some,
and settled where they are."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.errors import DependencyDownError, StoreDownError
from ksana.domain.dead_letters import LetterRecord, group_key
from ksana.ports.fabric import FabricHealth
from ksana.ports.inbox import LetterHead
from ksana.service.core.outside_letters import OutsideView, make_id
from ksana.service.nodes import dead_letters
from ksana.service.nodes.dead_letters import NodeLetters
from tests.ground.logs import capture_logs

pytestmark = pytest.mark.spec("N14")


class Fabric:
    """What a fabric tells of dead letters: heads by the instance that keeps them, newest first."""

    instance_id = "here"

    def __init__(self, **heads: list[LetterHead]) -> None:
        self.heads = heads
        self.is_well = True
        self.reason: str | None = None
        self.asked: list[tuple[str, str, int]] = []
        self.settled: list[tuple[str, str, str]] = []
        self.presence = self.dead_letters = self

    def health(self) -> FabricHealth:
        return FabricHealth(ok=self.is_well, reason=self.reason)

    async def list_living(self) -> list[Any]:
        return [SimpleNamespace(instance_id="there")]

    async def list_dead(self) -> list[str]:
        return ["dead", "there"]

    async def list_heads(self, instance_id: str, before: str, limit: int) -> list[LetterHead]:
        self.asked.append((instance_id, before, limit))
        heads = self.heads.get(instance_id, [])
        return [head for head in heads if not before or head.id < before][:limit]

    async def replay(self, instance_id: str, letter_id: str) -> bool:
        self.settled.append(("replay", instance_id, letter_id))
        return letter_id != "gone"

    async def delete(self, instance_id: str, letter_id: str) -> bool:
        self.settled.append(("delete", instance_id, letter_id))
        return letter_id != "gone"


class Events:
    """A store that takes events, unless it is away."""

    def __init__(self) -> None:
        self.is_down = False
        self.events = self
        self.rows: list[tuple[Any, ...]] = []

    def append(self, *row: Any) -> None:
        self.rows.append(row)

    async def transact(self, fn: Callable[[Any], Any]) -> Any:
        if self.is_down:
            raise StoreDownError("gone")
        return fn(self)


def letters_of(fabric: Fabric, store: Events | None = None) -> NodeLetters:
    there: Any = fabric
    kept: Any = store or Events()
    return NodeLetters(there, kept)


def heads(*ids: int, kind: str = "finished") -> list[LetterHead]:
    """Newest first."""
    return [LetterHead(f"{one:05}", kind, 10, one) for one in sorted(ids, reverse=True)]


def record(keeper: str, number: int, what: str = "a message of kind finished") -> LetterRecord:
    error = f"{what} was handed out 10 times and never done"
    return LetterRecord(
        id=make_id(keeper, f"{number:05}"),
        surface="nodes",
        entity_id=f"{keeper}/{number:05}",
        source=keeper,
        status="UNHANDLED",
        error=error,
        error_key=group_key(error),
        died_at=number,
    )


async def test_letters_of_all_instances_are_one_list_newest_first() -> None:
    fabric = Fabric(here=heads(2), there=heads(1, 4), dead=heads(3))
    assert await letters_of(fabric).look() == OutsideView(
        [record("there", 4), record("dead", 3), record("here", 2), record("there", 1)],
        is_capped=False,
    )
    assert [keeper for keeper, _, _ in fabric.asked] == ["dead", "here", "there"]


async def test_a_message_of_no_known_kind_is_said_to_be_one() -> None:
    view = await letters_of(Fabric(here=heads(1, kind=""))).look()
    assert view.letters == [record("here", 1, "a message of no known kind")]


@pytest.mark.parametrize(
    ("count", "asked"),
    [
        (0, [("", 50)]),
        (49, [("", 50)]),
        (50, [("", 50), ("00001", 50)]),
        (51, [("", 50), ("00002", 50)]),
    ],
)
async def test_letters_are_read_in_steps(count: int, asked: list[tuple[str, int]]) -> None:
    fabric = Fabric(here=heads(*range(1, count + 1)))
    view = await letters_of(fabric).look()
    assert (len(view.letters), view.is_capped) == (count, False)
    assert [(before, limit) for keeper, before, limit in fabric.asked if keeper == "here"] == asked


@pytest.mark.parametrize(("most", "is_capped"), [(3, True), (4, True), (5, False)])
async def test_no_more_than_so_many_letters_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, most: int, is_capped: bool
) -> None:
    monkeypatch.setattr(dead_letters, "MOST", most)
    fabric = Fabric(dead=heads(1, 2), here=heads(3, 4))
    view = await letters_of(fabric).look()
    assert (len(view.letters), view.is_capped) == (min(most, 4), is_capped)
    assert [limit for _, _, limit in fabric.asked][:2] == [most, most - 2]


async def test_the_last_step_reads_no_more_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MOST", 60)
    fabric = Fabric(dead=heads(*range(1, 101)))
    view = await letters_of(fabric).look()
    assert (len(view.letters), view.is_capped) == (60, True)
    assert fabric.asked == [("dead", "", 50), ("dead", "00051", 10)]


@pytest.mark.parametrize(
    ("reason", "message"), [("no link", "no link"), (None, "coordination is away")]
)
async def test_while_coordination_is_away_so_are_its_letters(
    reason: str | None, message: str
) -> None:
    fabric = Fabric()
    fabric.is_well, fabric.reason = False, reason
    with pytest.raises(DependencyDownError, match=message):
        await letters_of(fabric).look()
    assert fabric.asked == []


GONE = LetterRecord(1, "nodes", "there/gone", "there", "UNHANDLED", "e", 1, 1)


@pytest.mark.parametrize(
    ("replays", "done", "verb", "event"),
    [
        (True, ["there", None, "a/b"], "replay", ("NODE_MESSAGE_REPLAYED", "REPLAYED_BY_CALLER")),
        (False, ["", None, ""], "delete", ("NODE_MESSAGE_DISMISSED", "DISMISSED_BY_CALLER")),
    ],
)
async def test_letters_are_settled_where_they_are_and_what_was_done_is_recorded(
    replays: bool, done: list[str | None], verb: str, event: tuple[str, str]
) -> None:
    fabric, store = Fabric(), Events()
    letters = [record("there", 1), GONE, record("a/b", 2)]
    settled = await letters_of(fabric, store).settle(letters, "tester", replays=replays)
    assert settled == done
    assert fabric.settled == [
        (verb, "there", "00001"),
        (verb, "there", "gone"),
        (verb, "a/b", "00002"),
    ]
    kind, reason = event
    assert store.rows == [
        ("NODE", entity_id, kind, {"reason": reason, "actor": "tester"})
        for entity_id in ("there/00001", "a/b/00002")
    ]


async def test_letters_that_were_settled_stay_so_when_it_cannot_be_recorded() -> None:
    fabric, store = Fabric(), Events()
    store.is_down = True
    with capture_logs() as logs:
        done = await letters_of(fabric, store).settle([record("there", 1)], "me", replays=True)
    assert done == ["there"]
    assert logs == [
        {
            "event": "settled letters are not recorded",
            "log_level": "warning",
            "count": 1,
            "error": "gone",
        }
    ]
