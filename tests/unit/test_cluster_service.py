"""What operators see of nodes, sessions, instances and dead letters of the nodes surface."""

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import InvalidError, NotFoundError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.nodes.records import NodeRecord, SessionRecord
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.inbox import DeadLetter, InboxSettings
from ksana.ports.pages import MAX_PAGE_BYTES
from ksana.service.nodes.cluster import ClusterService, ClusterStatus, read_body
from tests.nodes.world import Instance, World

pytestmark = pytest.mark.spec("N14")


def cluster_on(**ports: Any) -> ClusterService:
    """The service on a fabric of which only these ports are asked."""
    engine: Any = SimpleNamespace(fabric=SimpleNamespace(instance_id="here", **ports))
    return ClusterService(engine)


@pytest.fixture
async def one(clock: VirtualClock) -> AsyncIterator[Instance]:
    world = World(clock=clock)
    yield await world.start("one")
    await world.close()


async def settle(instance: Instance) -> None:
    clock: Any = instance.clock
    await clock.advance(2 * SECOND)


# Nodes


@pytest.mark.parametrize(
    ("after", "limit", "found"),
    [("", 10, ["a", "b", "c"]), ("", 2, ["a", "b"]), ("a", 10, ["b", "c"]), ("c", 10, [])],
)
async def test_nodes_are_listed_by_id_after_a_place(
    one: Instance, after: str, limit: int, found: list[str]
) -> None:
    for name in ("c", "a", "b"):
        one.engine.view.put(NodeRecord(name, "one", 1))
    nodes = ClusterService(one.engine).list_nodes(after, limit)
    assert [node.node_id for node in nodes] == found


async def test_a_node_that_is_not_connected_is_named(one: Instance) -> None:
    cluster = ClusterService(one.engine)
    node = NodeRecord("a", "one", 1)
    one.engine.view.put(node)
    assert cluster.get_node("a") is node
    with pytest.raises(NotFoundError, match=f"no node '{'x' * 128}' is connected"):
        cluster.get_node("x" * 200)


async def test_a_node_is_drained_and_given_jobs_again(one: Instance) -> None:
    await one.node("n")
    await settle(one)
    cluster = ClusterService(one.engine)
    for is_draining in (True, False):
        node = await cluster.set_draining("n", is_draining)
        assert (node.node_id, node.is_draining) == ("n", is_draining)
        assert await one.fabric.marks.is_draining("n") is is_draining


# Sessions


class Listed:
    """Sessions that instances list, as the port has them."""

    def __init__(self, *sessions: SessionRecord) -> None:
        self.sessions = sessions
        self.asked: list[tuple[list[str], str, int]] = []

    async def list_living(self) -> list[Any]:
        return [SimpleNamespace(instance_id=name) for name in ("here", "there")]

    async def read(self, living: Sequence[str], after: str, limit: int) -> list[SessionRecord]:
        self.asked.append((list(living), after, limit))
        return list(self.sessions)[:limit]


def session(name: str, at: int, instance_id: str = "here") -> SessionRecord:
    return SessionRecord(name, instance_id, connected_at=at)


@pytest.mark.parametrize(
    ("limit", "next_after"), [(3, "c"), (4, None)], ids=["more may follow", "the last"]
)
async def test_sessions_of_living_instances_are_listed_and_where_to_go_on(
    limit: int, next_after: str | None
) -> None:
    listed = Listed(session("a", 1), session("b", 1), session("c", 1))
    cluster = cluster_on(presence=listed, sessions=listed)
    assert await cluster.list_sessions("0", limit) == (list(listed.sessions), next_after)
    assert listed.asked == [(["here", "there"], "0", limit)]
    assert cluster.instance_id == "here"


@pytest.mark.parametrize(
    ("here_at", "there_at", "shown"), [(1, 2, "there"), (2, 1, "here"), (1, 1, "here")]
)
async def test_of_a_session_that_two_instances_list_the_later_connection_is_shown(
    here_at: int, there_at: int, shown: str
) -> None:
    listed = Listed(session("a", here_at), session("a", there_at, "there"))
    sessions, _ = await cluster_on(presence=listed, sessions=listed).list_sessions("", 10)
    assert [one.instance_id for one in sessions] == [shown]


# Figures


async def test_the_figures_of_an_instance_and_what_there_is_behind_them(one: Instance) -> None:
    engine = one.engine
    node = await one.node("n", slots=2)
    node.mode = "hold"
    await settle(one)
    session = await one.session("s")
    for _ in range(2):
        await session.ask()
    for _ in range(3):
        await session.ask(wait_sec=60.0)
    await settle(one)
    engine.view.put(NodeRecord("elsewhere", "two", 1))
    engine.hosting.stale, engine.home.endings.stale = 3, 4
    engine.courier.sent, engine.courier.received, engine.courier.failed = 11, 12, 13
    engine.courier.buried, engine.adoption.adopted = 14, 15
    engine.sessions.undelivered, engine.recorder.dropped = 16, 17
    counts = {
        "nodes": 2,
        "nodes_here": 1,
        "sessions_here": 1,
        "jobs": 5,
        "waiting": 3,
        "stale_attempts": 7,
        "messages_sent": 11,
        "messages_received": 12,
        "messages_failed": 13,
        "dlq_moved": 14,
        "jobs_adopted": 15,
        "results_undelivered": 16,
        "events_dropped": 17,
    }
    cluster = ClusterService(engine)
    assert await cluster.get_counts() == counts
    fabric = one.fabric
    assert await cluster.get_status() == ClusterStatus(
        instance_id="one",
        durable=False,
        is_shared=fabric.is_shared,
        health=fabric.health(),
        instances=await fabric.presence.list_living(),
        inbox=await fabric.inbox.measure(),
        counts=counts,
        ops={},
    )


async def test_what_was_asked_of_the_fabric_is_shown_by_what_and_how_it_went(
    one: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = {("move", "ok"): 3, ("move", "lost"): 1, ("read", "ok"): 2}
    monkeypatch.setattr(one.fabric, "count_ops", lambda: ops)
    status = await ClusterService(one.engine).get_status()
    assert status.ops == {"move": {"ok": 3, "lost": 1}, "read": {"ok": 2}}


# Dead letters


class Kept:
    """Dead letters of instances, as the port has them. Notes how much was asked for at once."""

    def __init__(self, *sizes: int) -> None:
        self.letters = [
            DeadLetter(f"{number:03}-0", "here", b"x" * size, 5, 1)
            for number, size in enumerate(sizes)
        ]
        self.asked: list[tuple[str, str, int]] = []
        self.settled: list[tuple[str, str, str]] = []

    async def list_letters(self, instance_id: str, after: str, limit: int) -> list[DeadLetter]:
        self.asked.append((instance_id, after, limit))
        return [letter for letter in self.letters if letter.id > after][:limit]

    async def replay(self, instance_id: str, letter_id: str) -> bool:
        self.settled.append(("replay", instance_id, letter_id))
        return letter_id == "1-0"

    async def delete(self, instance_id: str, letter_id: str) -> bool:
        self.settled.append(("delete", instance_id, letter_id))
        return letter_id == "1-0"


@pytest.mark.parametrize(
    ("count", "limit", "asked"),
    [
        (0, 100, [("", 32)]),
        (31, 100, [("", 32)]),
        (32, 100, [("", 32), ("031-0", 32)]),
        (40, 34, [("", 32), ("031-0", 2)]),
        (40, 32, [("", 32)]),
        (3, 2, [("", 2)]),
    ],
)
async def test_letters_are_read_in_portions_up_to_the_limit(
    count: int, limit: int, asked: list[tuple[str, int]]
) -> None:
    kept = Kept(*[1] * count)
    page = await cluster_on(dead_letters=kept).list_letters("", "", limit)
    assert [letter.id for letter in page] == [letter.id for letter in kept.letters[:limit]]
    assert [(after, portion) for _, after, portion in kept.asked] == asked
    assert not page.is_cut


@pytest.mark.parametrize(
    ("sizes", "shown", "is_cut"),
    [
        ((MAX_PAGE_BYTES - 1, 1), 2, False),
        ((MAX_PAGE_BYTES - 1, 2), 1, True),
        ((MAX_PAGE_BYTES + 1,), 1, False),
        ((MAX_PAGE_BYTES + 1, 1), 1, True),
    ],
)
async def test_a_page_of_letters_is_bounded_by_bytes_and_never_empty(
    sizes: tuple[int, ...], shown: int, is_cut: bool
) -> None:
    page = await cluster_on(dead_letters=Kept(*sizes)).list_letters("", "", 10)
    assert (len(page), page.is_cut) == (shown, is_cut)


@pytest.mark.parametrize(("instance_id", "asked"), [("", "here"), ("there", "there")])
async def test_letters_are_those_of_the_instance_that_is_named_or_of_this_one(
    instance_id: str, asked: str
) -> None:
    kept = Kept()
    await cluster_on(dead_letters=kept).list_letters(instance_id, "1-0", 5)
    assert kept.asked == [(asked, "1-0", 5)]


async def test_a_letter_is_settled_once_and_one_that_is_not_there_is_named() -> None:
    kept = Kept()
    cluster = cluster_on(dead_letters=kept)
    await cluster.replay_letter("there", "1-0")
    await cluster.delete_letter("there", "1-0")
    assert kept.settled == [("replay", "there", "1-0"), ("delete", "there", "1-0")]
    for settle_letter in (cluster.replay_letter, cluster.delete_letter):
        with pytest.raises(NotFoundError, match="there is no dead letter '2-0' there"):
            await settle_letter("there", "2-0")


@pytest.mark.parametrize(
    "letter_id",
    [
        "x",
        "1-x",
        "1-",
        "-1",
        "1 - 0",
        "1-2-3",
        "\N{ARABIC-INDIC DIGIT ONE}-0",
        "\N{SUPERSCRIPT TWO}",
        f"{2**64 - 1}-0",
        f"0-{2**64 - 1}",
        "0" * 21,
        "9" * 5000,
    ],
    ids=lambda text: text[:12],
)
async def test_an_id_that_no_letter_can_have_is_refused(letter_id: str) -> None:
    kept = Kept()
    cluster = cluster_on(dead_letters=kept)
    for ask in (
        lambda: cluster.list_letters("", letter_id, 5),
        lambda: cluster.replay_letter("there", letter_id),
        lambda: cluster.delete_letter("there", letter_id),
    ):
        with pytest.raises(InvalidError) as raised:
            await ask()
        assert (raised.value.code, raised.value.field) == ("INVALID_ID", "id")
    assert (kept.asked, kept.settled) == ([], [])


@pytest.mark.parametrize(
    ("after", "found"),
    [("", "abc"), ("0", "abc"), ("0-0", "abc"), (f"{2**64 - 2}-{2**64 - 2}", "")],
)
async def test_a_place_is_a_number_or_two_wherever_the_letters_are_kept(
    clock: VirtualClock, after: str, found: str
) -> None:
    world = World(clock=clock)
    one = await world.start("one", NodeParameters(inbox=InboxSettings(dlq_max_deliveries=1)))
    inbox = one.fabric.inbox
    for body in (b"a", b"b", b"c"):
        await inbox.send("one", body)
    await settle(one)
    await clock.advance(2 * MINUTE)
    await inbox.bury()
    page = await ClusterService(one.engine).list_letters("one", after, 10)
    assert [letter.body for letter in page] == [letter.encode() for letter in found]
    await world.close()


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a":1}', {"a": 1}),
        (b"not json", "not json"),
        (b"\xff\xfe", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
        (b"\xc3\xa4 {", "\N{LATIN SMALL LETTER A WITH DIAERESIS} {"),
    ],
)
def test_what_is_in_a_letter_is_shown_as_json_or_as_text(body: bytes, shown: Any) -> None:
    assert read_body(DeadLetter("1-0", "here", body, 5, 1)) == shown
