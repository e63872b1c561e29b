"""Snapshots, slots and marks of nodes in Redis."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.instant import MILLISECOND, Micros
from ksana.domain.nodes.records import NodeRecord
from ksana.domain.nodes.storm import MarkResult, StormLimits
from ksana.fabric.redis import scripts
from ksana.fabric.redis.instances import to_ms
from ksana.fabric.redis.keys import RedisKeys
from ksana.fabric.redis.link import Command
from ksana.fabric.redis.router import Router, Step
from ksana.ports.fabric import NodeChanges, ReserveResult, SlotWish

_OVERLAP_MS: Final = 2_000
"""A reading goes back so far behind the last one: a write is entered into the list a moment after
the server's time was taken, and a new master's clock may be behind the old one's."""

_SWEEP_AT_MOST: Final = 500
_TOGETHER: Final = 100
"""Commands that go in one batch with the list; more are sent in parts, so that others have their
turn."""
_node = msgspec.json.Decoder(NodeRecord)
_RESERVE: Final[dict[int, ReserveResult]] = {
    1: "reserved",
    0: "full",
    -1: "away",
    -2: "draining",
}
_MARK: Final[dict[int, MarkResult]] = {1: "marked", 0: "debounced", -1: "limited"}


class RedisSnapshots:
    """See `ports.fabric.NodeSnapshots`.

    A node is written first and entered into `last_seen` after it, so a reader that sees the entry
    sees the node. A mark is the server's time of the last reading.
    """

    def __init__(self, router: Router, keys: RedisKeys) -> None:
        self._router = router
        self._keys = keys
        self._touch = scripts.load("touch_members")
        self._since = scripts.load("members_since")
        self._sweep = scripts.load("sweep_members")

    async def publish(self, nodes: Sequence[NodeRecord], ttl_us: Micros) -> None:
        if not nodes:
            return
        keys, ttl_ms = self._keys, to_ms(ttl_us)
        commands: list[tuple[str, Command]] = []
        for node in nodes:
            snapshot, presence = keys.node_snapshot(node.node_id), keys.node_presence(node.node_id)
            text = msgspec.json.encode(node)
            commands.append((snapshot, ("SET", snapshot, text, "PX", ttl_ms)))
            commands.append((presence, ("SET", presence, node.instance_id, "PX", ttl_ms)))
        ids = [node.node_id for node in nodes]
        commands.append((keys.nodes_all, ("SADD", keys.nodes_all, *ids)))
        await self._write_and_touch(commands, ids)

    async def withdraw(self, node_ids: Sequence[str]) -> None:
        if not node_ids:
            return
        keys = self._keys
        names = [
            name
            for node_id in node_ids
            for name in (keys.node_snapshot(node_id), keys.node_presence(node_id))
        ]
        await self._write_and_touch([(name, ("DEL", name)) for name in names], node_ids)

    async def _write_and_touch(
        self, commands: Sequence[tuple[str, Command]], node_ids: Sequence[str]
    ) -> None:
        """Write, and enter into `last_seen` after it; on one server, if it is little, together."""
        router, seen = self._router, self._keys.nodes_last_seen
        touch = router.script_step("snapshot", self._touch, (seen,), node_ids)
        if len(commands) <= _TOGETHER and router.are_together(seen, *(key for key, _ in commands)):
            steps = [router.step("snapshot", key, *command) for key, command in commands]
            await router.run_in_order([*steps, touch])
            return
        await router.run_many("snapshot", commands)
        await router.run_in_order([touch])

    async def read_changes(self, mark: int) -> NodeChanges:
        keys = self._keys
        since = max(0, mark - _OVERLAP_MS)
        now, *members = await self._router.call(
            "snapshot", self._since, (keys.nodes_last_seen,), (since,)
        )
        ids = [member.decode() for member in members]
        names = [keys.node_snapshot(node_id) for node_id in ids]
        texts = await self._router.run_many("snapshot", [(name, ("GET", name)) for name in names])
        nodes = {
            node_id: None if text is None else _node.decode(text)
            for node_id, text in zip(ids, texts, strict=True)
        }
        return NodeChanges(nodes=nodes, mark=int(now))

    async def sweep(self, idle_us: Micros) -> int:
        keys = self._keys
        old: list[bytes] = await self._router.call(
            "snapshot", self._sweep, (keys.nodes_last_seen,), (to_ms(idle_us), _SWEEP_AT_MOST)
        )
        if old:
            # A node that comes back between the two steps is entered again with its next
            # heartbeat; until then nobody misses it, for readers follow last_seen.
            await self._router.run("snapshot", keys.nodes_all, "SREM", keys.nodes_all, *old)
        return len(old)


class RedisReservations:
    """See `ports.fabric.Reservations`."""

    def __init__(self, router: Router, keys: RedisKeys) -> None:
        self._router = router
        self._keys = keys
        self._reserve = scripts.load("slot_reserve")
        self._count = scripts.load("slot_count")

    async def reserve(
        self, node_id: str, job_id: str, slots: int, model: str, ttl_us: Micros
    ) -> ReserveResult:
        wish = SlotWish(node_id=node_id, job_id=job_id, slots=slots, model=model, ttl_us=ttl_us)
        (answer,) = await self._router.run_in_order([self.reserve_step(wish)])
        return self.read_reserved(answer)

    def reserve_step(self, wish: SlotWish) -> Step:
        """A wish as a step, to go along with others."""
        keys, node_id = self._keys, wish.node_id
        touched = (keys.reserved(node_id), keys.away(node_id), keys.drain(node_id))
        arguments = (wish.job_id, wish.slots, wish.model, to_ms(wish.ttl_us))
        return self._router.script_step("reserve", self._reserve, touched, arguments)

    def read_reserved(self, answer: int) -> ReserveResult:
        """What came of that step."""
        if answer != 1:
            self._router.count("reserve", "refused")
        return _RESERVE[answer]

    async def release(self, node_id: str, job_id: str) -> bool:
        key = self._keys.reserved(node_id)
        return bool(await self._router.run("release", key, "ZREM", key, job_id))

    async def count(self, node_id: str) -> int:
        key = self._keys.reserved(node_id)
        return int(await self._router.call("reserve", self._count, (key,), ()))


class RedisMarks:
    """See `ports.fabric.NodeMarks`."""

    def __init__(self, router: Router, keys: RedisKeys) -> None:
        self._router = router
        self._keys = keys
        self._mark = scripts.load("model_away")
        self._list = scripts.load("models_away")

    async def mark_away(self, node_id: str, model: str, limits: StormLimits) -> MarkResult:
        arguments = (
            model,
            to_ms(limits.away_us),
            to_ms(limits.debounce_us),
            limits.most,
            to_ms(limits.window_us),
        )
        touched = (self._keys.away(node_id), self._keys.away_marks(node_id))
        answer = await self._router.call("model_away", self._mark, touched, arguments)
        if answer != 1:
            self._router.count("model_away", "refused")
        return _MARK[answer]

    async def list_away(self, node_id: str) -> dict[str, Micros]:
        found = await self._router.call("model_away", self._list, (self._keys.away(node_id),), ())
        pairs = zip(found[::2], found[1::2], strict=True)
        return {model.decode(): int(rest_ms) * MILLISECOND for model, rest_ms in pairs}

    async def set_draining(self, node_id: str, is_draining: bool, ttl_us: Micros) -> None:
        key = self._keys.drain(node_id)
        if is_draining:
            await self._router.run("drain", key, "SET", key, 1, "PX", to_ms(ttl_us))
        else:
            await self._router.run("drain", key, "DEL", key)

    async def is_draining(self, node_id: str) -> bool:
        key = self._keys.drain(node_id)
        return bool(await self._router.run("drain", key, "EXISTS", key))
