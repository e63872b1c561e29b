"""Nodes, instances and dead letters for operators (N14)."""

from typing import Any, Final

import msgspec

from ksana.base.errors import InvalidError, NotFoundError
from ksana.domain.nodes.records import InstanceInfo, NodeRecord, SessionRecord
from ksana.engine.nodes.engine import NodesEngine
from ksana.ports.fabric import FabricHealth
from ksana.ports.inbox import DeadLetter, InboxState
from ksana.ports.pages import MAX_PAGE_BYTES, PageRows

_PORTION: Final = 32
"""Dead letters read at once: each may have a quarter of a megabyte and more."""
_LAST_PLACE: Final = (1 << 64) - 1
_MOST_DIGITS: Final = len(str(_LAST_PLACE))


class ClusterStatus(msgspec.Struct, frozen=True):
    """How the instances and their coordination fare."""

    instance_id: str
    durable: bool
    is_shared: bool
    health: FabricHealth
    instances: list[InstanceInfo]
    inbox: InboxState
    counts: dict[str, int]
    ops: dict[str, dict[str, int]]


class ClusterService:
    """What operators may see and do."""

    def __init__(self, engine: NodesEngine) -> None:
        self._engine = engine
        self._fabric = engine.fabric

    @property
    def instance_id(self) -> str:
        """Which instance answers."""
        return self._fabric.instance_id

    def list_nodes(self, after: str, limit: int) -> PageRows[NodeRecord]:
        """Nodes of all instances by id, from the view of this one; fewer where their bytes are
        many: a node may have hundreds of models and labels."""
        found = sorted(
            (node for node in self._engine.view if node.node_id > after),
            key=lambda node: node.node_id,
        )
        page: PageRows[NodeRecord] = PageRows()
        left = MAX_PAGE_BYTES
        for node in found[:limit]:
            left -= len(msgspec.json.encode(node))
            if left < 0 and page:
                page.is_cut = True
                break
            page.append(node)
        return page

    def get_node(self, node_id: str) -> NodeRecord:
        """Find a node. Raise 404."""
        node = self._engine.view.get(node_id)
        if node is None:
            raise NotFoundError(f"no node {node_id[:128]!r} is connected")
        return node

    async def list_sessions(self, after: str, limit: int) -> tuple[list[SessionRecord], str | None]:
        """Sessions of all instances that live, by id, and the id to go on after. A session that
        moved may be listed by two: the later connection is the true one."""
        living = [one.instance_id for one in await self._fabric.presence.list_living()]
        found = await self._fabric.sessions.read(living, after, limit)
        shown: dict[str, SessionRecord] = {}
        for session in found:
            known = shown.get(session.session_id)
            if known is None or known.connected_at < session.connected_at:
                shown[session.session_id] = session
        next_after = found[-1].session_id if len(found) == limit else None
        return list(shown.values()), next_after

    async def set_draining(self, node_id: str, is_draining: bool) -> NodeRecord:
        """Give a node no more jobs, or give it jobs again. What it has it may finish."""
        node = self.get_node(node_id)
        await self._engine.registration.set_draining(node_id, is_draining, node.instance_id)
        node.is_draining = is_draining
        return node

    async def get_counts(self) -> dict[str, int]:
        """How much there is and what happened, in numbers: the section of /api/v1/stats."""
        engine = self._engine
        return {
            "nodes": len(engine.view),
            "nodes_here": len(engine.hosting.nodes),
            "sessions_here": len(engine.sessions.local),
            "jobs": len(engine.home.jobs),
            "waiting": len(engine.home.watch.line),
            "stale_attempts": engine.hosting.stale + engine.home.endings.stale,
            "messages_sent": engine.courier.sent,
            "messages_received": engine.courier.received,
            "messages_failed": engine.courier.failed,
            "dlq_moved": engine.courier.buried,
            "jobs_adopted": engine.adoption.adopted,
            "results_undelivered": engine.sessions.undelivered,
            "events_dropped": engine.recorder.dropped,
        }

    async def get_status(self) -> ClusterStatus:
        """Everything about this instance and its peers."""
        ops: dict[str, dict[str, int]] = {}
        for (op, result), count in self._fabric.count_ops().items():
            ops.setdefault(op, {})[result] = count
        return ClusterStatus(
            instance_id=self._fabric.instance_id,
            durable=self._fabric.durable,
            is_shared=self._fabric.is_shared,
            health=self._fabric.health(),
            instances=await self._fabric.presence.list_living(),
            inbox=await self._fabric.inbox.measure(),
            counts=await self.get_counts(),
            ops=ops,
        )

    async def list_letters(self, instance_id: str, after: str, limit: int) -> PageRows[DeadLetter]:
        """Dead letters of one instance, the oldest first; fewer where their bytes are many."""
        _check_letter_id(after)
        page: PageRows[DeadLetter] = PageRows()
        left, keeper = MAX_PAGE_BYTES, instance_id or self._fabric.instance_id
        while len(page) < limit:
            portion = min(_PORTION, limit - len(page))
            found = await self._fabric.dead_letters.list_letters(keeper, after, portion)
            for letter in found:
                left -= len(letter.body)
                if left < 0 and page:
                    page.is_cut = True
                    return page
                page.append(letter)
            if len(found) < portion:
                break
            after = found[-1].id
        return page

    async def replay_letter(self, instance_id: str, letter_id: str) -> None:
        """Handle a dead letter again. Raise 404."""
        _check_letter_id(letter_id)
        if not await self._fabric.dead_letters.replay(instance_id, letter_id):
            raise _no_letter(letter_id)

    async def delete_letter(self, instance_id: str, letter_id: str) -> None:
        """Remove a dead letter. Raise 404."""
        _check_letter_id(letter_id)
        if not await self._fabric.dead_letters.delete(instance_id, letter_id):
            raise _no_letter(letter_id)


def read_body(letter: DeadLetter) -> Any:
    """What is in a dead letter: JSON, or text where it is not."""
    try:
        return msgspec.json.decode(letter.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return letter.body.decode("utf-8", "replace")


def _check_letter_id(letter_id: str) -> None:
    parts = letter_id.split("-") if letter_id else []
    if len(parts) > 2 or not all(map(_is_place, parts)):
        raise InvalidError(
            f"{letter_id[:64]!r} is not the id of a dead letter", code="INVALID_ID", field="id"
        )


def _is_place(part: str) -> bool:
    """Whether a fabric understands it: Redis refuses other numbers, and to look after the last."""
    is_number = len(part) <= _MOST_DIGITS and part.isascii() and part.isdecimal()
    return is_number and int(part) < _LAST_PLACE


def _no_letter(letter_id: str) -> NotFoundError:
    return NotFoundError(f"there is no dead letter {letter_id[:64]!r} there")
