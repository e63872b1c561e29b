"""Request bindings and node jobs in Redis."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import MILLISECOND, Micros
from ksana.domain.nodes.moves import (
    MOVES,
    Moved,
    MoveName,
    MoveResult,
    NodeJobChange,
    attempt_after,
)
from ksana.domain.nodes.records import (
    ENDED,
    Binding,
    JobOutcome,
    JobProgress,
    JobRequest,
    JobState,
    NodeJob,
)
from ksana.fabric.redis import scripts
from ksana.fabric.redis.inbox import RedisInbox
from ksana.fabric.redis.instances import to_ms
from ksana.fabric.redis.keys import RedisKeys
from ksana.fabric.redis.link import Word
from ksana.fabric.redis.nodes import RedisReservations
from ksana.fabric.redis.router import Router, Step
from ksana.fabric.redis.signals import RedisSignals
from ksana.ports.fabric import Created, JobEnd, ReserveResult, SlotWish
from ksana.ports.inbox import Post, SendResult

_binding = msgspec.json.Decoder(Binding)
_request = msgspec.json.Decoder(JobRequest)
_progress = msgspec.json.Decoder(JobProgress)
_outcome = msgspec.json.Decoder(JobOutcome)

_FIELDS: Final = ("request", "state", "attempt", "node_id", "home", "progress", "outcome")


def _marked(states: Iterable[str]) -> str:
    """States as the scripts search them: each between commas."""
    return "," + ",".join(sorted(states)) + ","


_SOURCES: Final = {name: _marked(move.sources) for name, move in MOVES.items()}
_REPEATS: Final = {name: _marked(move.repeats) for name, move in MOVES.items()}
_ENDED: Final = _marked(ENDED)


class RedisRequests:
    """See `ports.fabric.RequestBindings`."""

    def __init__(
        self, router: Router, keys: RedisKeys, instance_id: str, reservations: RedisReservations
    ) -> None:
        self._router = router
        self._keys = keys
        self._instance_id = instance_id
        self._reservations = reservations
        self._bind = scripts.load("request_bind")
        self._unbind = scripts.load("request_unbind")
        self._lock = scripts.load("owner_claim")

    async def bind(self, request_id: str, binding: Binding, ttl_us: Micros) -> Binding:
        (held,) = await self._router.run_in_order([self._bind_step(request_id, binding, ttl_us)])
        return self._read_bound(held, binding)

    async def bind_and_reserve(
        self, request_id: str, binding: Binding, ttl_us: Micros, wish: SlotWish
    ) -> tuple[Binding, ReserveResult | None]:
        steps = [
            self._bind_step(request_id, binding, ttl_us),
            self._reservations.reserve_step(wish),
        ]
        if not self._router.are_together(*(step.key for step in steps)):
            return await self.bind(request_id, binding, ttl_us), None
        held, reserved = await self._router.run_in_order(steps)
        return self._read_bound(held, binding), self._reservations.read_reserved(reserved)

    def _bind_step(self, request_id: str, binding: Binding, ttl_us: Micros) -> Step:
        arguments = (msgspec.json.encode(binding), to_ms(ttl_us))
        key = self._keys.request_binding(request_id)
        return self._router.script_step("bind", self._bind, (key,), arguments)

    def _read_bound(self, held: bytes, binding: Binding) -> Binding:
        bound = _binding.decode(held)
        if bound.job_id != binding.job_id:
            self._router.count("bind", "refused")
        return bound

    async def find(self, request_id: str) -> Binding | None:
        key = self._keys.request_binding(request_id)
        text = await self._router.run("bind", key, "GET", key)
        return None if text is None else _binding.decode(text)

    async def unbind_if(self, request_id: str, job_id: str) -> bool:
        key = self._keys.request_binding(request_id)
        return bool(await self._router.call("bind", self._unbind, (key,), (job_id,)))

    async def lock(self, request_id: str, ttl_us: Micros) -> bool:
        key = self._keys.request_lock(request_id)
        holder: bytes = await self._router.call(
            "lock", self._lock, (key,), (self._instance_id, to_ms(ttl_us))
        )
        return holder.decode() == self._instance_id


class RedisJobs:
    """See `ports.fabric.NodeJobs`. A job is a hash, so that a script can compare its members."""

    def __init__(
        self,
        router: Router,
        keys: RedisKeys,
        instance_id: str,
        inbox: RedisInbox,
        signals: RedisSignals,
    ) -> None:
        self._router = router
        self._keys = keys
        self._instance_id = instance_id
        self._inbox = inbox
        self._free = signals.command("nodes.free")
        self._create = scripts.load("job_create")
        self._move = scripts.load("job_move")
        self._adopt = scripts.load("job_adopt")

    async def create(
        self,
        request: JobRequest,
        home: str,
        keep_us: Micros,
        dispatch: NodeJobChange | None = None,
        post: Post | None = None,
    ) -> Created:
        fields: list[Word] = ["request", msgspec.json.encode(request), "home", home]
        if dispatch is None:
            fields += ["state", "CREATED", "attempt", 1, "node_id", ""]
        else:
            fields += _written(dispatch)
        homed, created_ms = self._keys.homed(home), request.created_at // MILLISECOND
        key = self._keys.job(request.job_id)
        router = self._router
        listing = router.step("homed", homed, "ZADD", homed, "NX", created_ms, request.job_id)
        steps = [router.script_step("job_create", self._create, (key,), (to_ms(keep_us), *fields))]
        if post is not None:
            steps.append(self._inbox.send_step(post.instance_id, post.body))
        if router.are_together(homed, key):
            _, *answers = await router.run_in_order([listing, *steps])
        else:
            answers, _ = await asyncio.gather(
                router.run_in_order(steps), router.run_in_order([listing])
            )
        (is_new, state, attempt), *sent = answers
        if not is_new:
            router.count("job_create", "refused")
        return Created(
            is_new=bool(is_new),
            state=state.decode(),
            attempt=int(attempt),
            sent=self._inbox.read_sent(sent[0]) if sent else None,
        )

    async def move(self, job_id: str, change: NodeJobChange) -> Moved:
        (answer,) = await self._router.run_in_order([self._move_step(job_id, change)])
        moved, home = self._read_moved(answer, change)
        if change.name == "release" and moved.holds:
            await self.strike_homed(home, (job_id,))
        return moved

    async def move_and_post(
        self, job_id: str, change: NodeJobChange, post: Post
    ) -> tuple[Moved, SendResult]:
        steps = [
            self._move_step(job_id, change),
            self._inbox.send_step(post.instance_id, post.body),
        ]
        answer, sent = await self._router.run_in_order(steps)
        return self._read_moved(answer, change)[0], self._inbox.read_sent(sent)

    async def settle(self, ends: Sequence[JobEnd], *, hint: bool = False) -> list[Moved]:
        slots = [self._keys.reserved(end.node_id) for end in ends]
        keys = [self._keys.job(end.job_id) for end in ends]
        if not self._router.are_together(*keys, *slots):
            if len(ends) > 1:
                found = await asyncio.gather(*(self.settle([end], hint=hint) for end in ends))
                return [one for (one,) in found]
            (end,) = ends
            if end.node_id:
                return [await self.move(end.job_id, end.change)]
        steps: list[Step] = []
        for end, slot in zip(ends, slots, strict=True):
            if end.node_id:
                steps.append(self._router.step("release", slot, "ZREM", slot, end.job_id))
            steps.append(self._move_step(end.job_id, end.change, is_settled=True))
        if hint:
            steps.append(self._router.step("signal", keys[0], *self._free))
        answers = iter(await self._router.run_in_order(steps))
        moved = []
        for end in ends:
            if end.node_id:
                next(answers)
            moved.append(self._read_moved(next(answers), end.change)[0])
        return moved

    def _move_step(self, job_id: str, change: NodeJobChange, *, is_settled: bool = False) -> Step:
        """A move; with `is_settled` it is `finish` and `release` at once."""
        name: MoveName = change.name
        arguments = (
            change.attempt,
            change.node_id,
            _SOURCES[name],
            _REPEATS[name],
            "CREATED" if name == "dispatch" else "",
            MOVES[name].target if is_settled else "",
            to_ms(change.keep_us),
            *_written(change, "release" if is_settled else name),
        )
        key = self._keys.job(job_id)
        return self._router.script_step(f"job_{name}", self._move, (key,), arguments)

    def _read_moved(self, answer: Any, change: NodeJobChange) -> tuple[Moved, str]:
        result, state, attempt, home = (word.decode() for word in answer)
        moved = Moved(result=msgspec.convert(result, MoveResult), state=state, attempt=int(attempt))
        if not moved.holds:
            self._router.count(f"job_{change.name}", "refused")
        return moved, home

    async def find(self, job_id: str) -> NodeJob | None:
        key = self._keys.job(job_id)
        found = await self._router.run("job_find", key, "HMGET", key, *_FIELDS)
        request, state, attempt, node_id, home, progress, outcome = found
        if state is None or request is None:
            return None
        return NodeJob(
            request=_request.decode(request),
            state=msgspec.convert(state.decode(), JobState),
            attempt=int(attempt),
            node_id=(node_id or b"").decode(),
            home=(home or b"").decode(),
            progress=_progress.decode(progress) if progress else JobProgress(),
            outcome=_outcome.decode(outcome) if outcome else None,
        )

    async def adopt_if(self, job_id: str, former: str, keep_us: Micros) -> bool:
        homed = self._keys.homed(self._instance_id)
        # Listed first: a job that is ours and not listed would be lost with us.
        await self._router.run("homed", homed, "ZADD", homed, "NX", 0, job_id)
        key = self._keys.job(job_id)
        arguments = (self._instance_id, former, _ENDED, to_ms(keep_us))
        is_ours = bool(await self._router.call("job_adopt", self._adopt, (key,), arguments))
        if not is_ours:
            self._router.count("job_adopt", "refused")
            await self.strike_homed(self._instance_id, (job_id,))
        return is_ours

    async def list_homed(self, instance_id: str, limit: int) -> list[str]:
        key = self._keys.homed(instance_id)
        found = await self._router.run("homed", key, "ZRANGE", key, 0, limit - 1)
        return [job_id.decode() for job_id in found]

    async def strike_homed(self, instance_id: str, job_ids: Sequence[str]) -> None:
        if job_ids:
            key = self._keys.homed(instance_id)
            await self._router.run("homed", key, "ZREM", key, *job_ids)


def _written(change: NodeJobChange, reached: MoveName | None = None) -> list[Word]:
    """The fields that a change writes, the state first; `reached` names a later move that is made
    with it."""
    fields: list[Word] = [
        "state",
        MOVES[reached or change.name].target,
        "attempt",
        attempt_after(change),
    ]
    if change.name == "dispatch":
        fields += ["node_id", change.node_id]
    elif change.name == "again":
        fields += ["node_id", ""]
    if change.progress is not None:
        fields += ["progress", msgspec.json.encode(change.progress)]
    if change.outcome is not None:
        fields += ["outcome", msgspec.json.encode(change.outcome)]
    return fields
