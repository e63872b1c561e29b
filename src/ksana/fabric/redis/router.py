"""Sends each command to the server of its slot, and rides out what a Cluster does to us.

A single Redis is a Cluster of one: every slot is its. What is answered decides what follows:

    MOVED                      the slot has moved: note it, ask that server, learn the map anew soon
    ASK                        the slot is moving: ASKING and the command side by side, this once
    TRYAGAIN, CLUSTERDOWN,     pause, learn the map anew, try again
    LOADING, READONLY,
    a broken connection
    NOSCRIPT                   the server restarted or is a new master: send the text with the call

All within RIDE_OUT_SEC; then, or at once while a server has been away for longer than that, it is
DependencyDownError. A command may have been executed although its connection broke, so every
command that comes here must be harmless when executed twice.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import DAY, SECOND, Micros
from ksana.fabric.redis.address import Address, RedisUrl
from ksana.fabric.redis.keys import SLOTS, slot_of
from ksana.fabric.redis.link import Command, Link, LinkDownError, Word
from ksana.fabric.redis.scripts import Script

RIDE_OUT_SEC: Final = 4.0
"""Longer than a failover takes with a node timeout of a second or two."""

FIRST_PAUSE_SEC: Final = 0.02
LONGEST_PAUSE_SEC: Final = 0.25
_REFRESH_EVERY_SEC: Final = 0.1

_MANY: Final = 200
"""Commands of one caller in one batch: enough to share a round trip, few enough for others to have
their turn."""

_UNANSWERED: Final = object()

_TRANSIENT: Final = (
    TryAgainError,
    ClusterDownError,
    BusyLoadingError,
    ReadOnlyError,
    MasterDownError,
)


class Step(NamedTuple):
    """One command about one key, made by `Router.step` or `Router.script_step`."""

    op: str
    key: str
    command: Command
    script: Script | None = None


class _Trip:
    """One command on its way, with what is known of its tries."""

    __slots__ = ("asked", "command", "give_up_at", "op", "pause_sec", "reason", "script", "slot")

    def __init__(
        self, op: str, slot: int, command: Command, script: Script | None, give_up_at: float
    ) -> None:
        self.op = op
        self.slot = slot
        self.command = command
        self.script = script
        self.give_up_at = give_up_at
        self.pause_sec = FIRST_PAUSE_SEC
        self.asked: Address | None = None
        self.reason = ""


class Router:
    """The way to Redis for everything that does not block."""

    def __init__(self, url: RedisUrl, clock: Clock) -> None:
        self._url = url
        self.clock = self._clock = clock
        self._links: dict[Address, Link] = {}
        self._map: list[Address] = [url.seeds[0]] * SLOTS
        self._is_mapped = not url.is_cluster
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = 0.0
        self._closed_trips = 0
        self.blocking_reads = 0
        self.ops: dict[tuple[str, str], int] = {}
        self._problem: str | None = None
        self._well_since: Micros = clock.monotonic() - DAY

    @property
    def url(self) -> RedisUrl:
        return self._url

    @property
    def problem(self) -> str | None:
        """Why the last command that failed did; None since one succeeded."""
        return self._problem

    @property
    def well_us(self) -> Micros:
        """How long it has been without a problem."""
        if self._problem is not None:
            return 0
        return min(DAY, self._clock.monotonic() - self._well_since)

    def _note_success(self) -> None:
        if self._problem is not None:
            self._problem = None
            self._well_since = self._clock.monotonic()

    @property
    def round_trips(self) -> int:
        """Batches that were sent and answered, blocking reads included."""
        trips = sum(link.round_trips for link in self._links.values())
        return self._closed_trips + self.blocking_reads + trips

    def count(self, op: str, result: str) -> None:
        """Count an operation by its result."""
        key = (op, result)
        self.ops[key] = self.ops.get(key, 0) + 1

    async def run(self, op: str, key: str, *words: Word) -> Any:
        """Send one command about one key."""
        return await self._execute(op, slot_of(key), words, None)

    async def call(
        self, op: str, script: Script, keys: Sequence[str], arguments: Sequence[Word]
    ) -> Any:
        """Call a script. All its keys lie in the slot of the first."""
        step = self.script_step(op, script, keys, arguments)
        return await self._execute(op, slot_of(step.key), step.command, script)

    async def run_many(self, op: str, commands: Sequence[tuple[str, Command]]) -> list[Any]:
        """Send many commands, each about one key, in batches. Answers in their order."""
        return await self._execute_many(op, commands, None)

    async def call_many(
        self, op: str, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Word]]]
    ) -> list[Any]:
        """Call one script many times, with (keys, arguments) each."""
        steps = [self.script_step(op, script, keys, arguments) for keys, arguments in calls]
        return await self._execute_many(op, [(step.key, step.command) for step in steps], script)

    def step(self, op: str, key: str, *words: Word) -> Step:
        """A command for `run_in_order`."""
        return Step(op, key, words)

    def script_step(
        self, op: str, script: Script, keys: Sequence[str], arguments: Sequence[Word]
    ) -> Step:
        """A call of a script. Every call of one is made here."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        return Step(op, keys[0], command, script)

    def are_together(self, *keys: str) -> bool:
        """Whether these keys are on one server, as far as we know."""
        return not self._url.is_cluster or len({self._map[slot_of(key)] for key in keys}) == 1

    async def run_in_order(self, steps: Sequence[Step]) -> list[Any]:
        """Do one step after the other; neighbours on one server share a round trip. When a step is
        not answered, or refused for the moment, it and all after it are done again, one by one."""
        if not self._is_mapped:
            await self.refresh()
        answers: list[Any] = []
        for address, part in self._share(steps):
            got: list[Any] = []
            if len(part) > 1:
                with contextlib.suppress(LinkDownError):
                    got = await self._link(address).send(*(step.command for step in part))
            done = 0
            for step, answer in zip(part, got, strict=False):
                if isinstance(answer, RedisError):
                    break
                self.count(step.op, "ok")
                answers.append(answer)
                done += 1
            for op, key, command, script in part[done:]:
                answers.append(await self._execute(op, slot_of(key), command, script))
        self._note_success()
        return answers

    def _share(self, steps: Sequence[Step]) -> list[tuple[Address, Sequence[Step]]]:
        """Neighbours on one server together."""
        if not self._url.is_cluster:
            return [(self._map[0], steps)]
        shares: list[tuple[Address, list[Step]]] = []
        for step in steps:
            address = self._map[slot_of(step.key)]
            if shares and shares[-1][0] == address:
                shares[-1][1].append(step)
            else:
                shares.append((address, [step]))
        return [(address, part) for address, part in shares]

    async def find_address(self, key: str) -> Address:
        """The server that has a key, as far as we know."""
        if not self._is_mapped:
            await self.refresh()
        return self._map[slot_of(key)]

    async def list_masters(self) -> list[Address]:
        """All servers that have slots."""
        if not self._is_mapped:
            await self.refresh()
        return list(dict.fromkeys(self._map))

    async def ask_server(self, address: Address, *words: Word) -> Any:
        """Ask one server about itself, once. Raise LinkDownError if it is away."""
        return (await self._link(address).send(words))[0]

    async def close(self) -> None:
        """Close every connection."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    async def _execute(self, op: str, slot: int, command: Command, script: Script | None) -> Any:
        loop = asyncio.get_running_loop()
        trip = _Trip(op, slot, command, script, loop.time() + RIDE_OUT_SEC)
        while True:
            if not self._is_mapped:
                await self.refresh()
            link = self._link(trip.asked or self._map[slot])
            words = (("ASKING",), trip.command) if trip.asked else (trip.command,)
            trip.asked = None
            try:
                answer = (await link.send(*words))[-1]
            except LinkDownError as error:
                trip.reason = str(error)
                if link.down_since is not None and link.down_since < loop.time() - RIDE_OUT_SEC:
                    trip.give_up_at = 0.0  # away for long: nobody waits for it any more
            else:
                if not isinstance(answer, RedisError):
                    self._note_success()
                    self.count(op, "ok")
                    return answer
                if self._react(trip, answer, link) and loop.time() < trip.give_up_at:
                    continue
            await self._pause(trip)

    def _react(self, trip: "_Trip", answer: RedisError, link: Link) -> bool:
        """Prepare the next try after an error. True: at once; False: after a pause."""
        trip.reason = f"{link.name}: {answer}"
        if isinstance(answer, NoScriptError) and trip.script is not None:
            trip.command = ("EVAL", trip.script.text, *trip.command[2:])
            return True
        if type(answer) is MovedError:
            self._map[trip.slot] = _place(answer, link)
            self._refresh_soon()
        elif isinstance(answer, AskError):
            trip.asked = _place(answer, link)
        elif isinstance(answer, _TRANSIENT):
            return False
        else:
            raise self._fault(trip.op, answer)
        self.count(trip.op, "retried")
        return True

    async def _pause(self, trip: "_Trip") -> None:
        """Wait, longer each time, and learn the map anew. Raise when the time is over."""
        now = asyncio.get_running_loop().time()
        if now + trip.pause_sec > trip.give_up_at:
            raise self._away(trip.op, trip.reason)
        self.count(trip.op, "retried")
        await self._clock.sleep_until(self._clock.now() + round(trip.pause_sec * SECOND))
        trip.pause_sec = min(trip.pause_sec * 2, LONGEST_PAUSE_SEC)
        await self.refresh()

    async def _execute_many(
        self, op: str, commands: Sequence[tuple[str, Command]], script: Script | None
    ) -> list[Any]:
        if not self._is_mapped:
            await self.refresh()
        answers: list[Any] = [_UNANSWERED] * len(commands)
        by_server: dict[Address, list[int]] = {}
        for index, (key, _) in enumerate(commands):
            by_server.setdefault(self._map[slot_of(key)], []).append(index)
        for address, indexes in by_server.items():
            for start in range(0, len(indexes), _MANY):
                part = indexes[start : start + _MANY]
                with contextlib.suppress(LinkDownError):
                    got = await self._link(address).send(*(commands[index][1] for index in part))
                    for index, answer in zip(part, got, strict=True):
                        answers[index] = answer
        for index, answer in enumerate(answers):
            if answer is _UNANSWERED or isinstance(answer, RedisError):
                # Moved, not loaded, or lost: go the way that rides it out, one by one.
                key, command = commands[index]
                answers[index] = await self._execute(op, slot_of(key), command, script)
            else:
                self.count(op, "ok")
        return answers

    def _away(self, op: str, reason: str) -> DependencyDownError:
        self.count(op, "error")
        self._problem = reason
        return DependencyDownError(f"Redis cannot be reached: {reason}")

    def _fault(self, op: str, answer: RedisError) -> Exception:
        self.count(op, "error")
        said = f"{type(answer).__name__}: {answer}"[:300]
        self._problem = f"Redis refused {op}: {said}"
        log.error("Redis refused a command", op=op, err=said)
        return DependencyDownError(f"Redis refused {op}: {said}")

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            connect = self._url.connection
            link = self._links[address] = Link(str(address), lambda: connect(address))
        return link

    # ---- the map of slots ----

    async def refresh(self) -> None:
        """Learn which server has which slot. Callers that come together share one question. Does
        nothing for a single Redis, and never raises: the old map stays if nobody answers."""
        if not self._url.is_cluster:
            return
        self._refresh_soon()
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    def _refresh_soon(self) -> None:
        loop = asyncio.get_running_loop()
        is_due = loop.time() >= self._refreshed_at + _REFRESH_EVERY_SEC or not self._is_mapped
        if self._url.is_cluster and self._refreshing is None and is_due:
            self._refreshing = loop.create_task(self._learn_map())

    async def _learn_map(self) -> None:
        try:
            known = dict.fromkeys([*self._map, *self._url.seeds])
            for address in known:
                try:
                    (answer,) = await self._link(address).send(("CLUSTER", "SLOTS"))
                except LinkDownError:
                    continue
                found = _read_map(answer, address)
                if found is None:
                    continue
                for first, last, owner in found:
                    self._map[first : last + 1] = [owner] * (last + 1 - first)
                self._is_mapped = True
                await self._drop_unused()
                return
            # With no map at all the seeds are asked in the usual way, and say what is wrong.
            self._is_mapped = True
        finally:
            self._refreshed_at = asyncio.get_running_loop().time()
            self._refreshing = None

    async def _drop_unused(self) -> None:
        in_use = {*self._map, *self._url.seeds}
        for address in [one for one in self._links if one not in in_use]:
            link = self._links.pop(address)
            self._closed_trips += link.round_trips
            await link.close()


def _place(error: AskError, link: Link) -> Address:
    """Where MOVED and ASK point to. An empty host means the one that said so."""
    host = error.host or link.name.rpartition(":")[0]
    return Address(host=host, port=int(error.port))


def _read_map(answer: Any, asked: Address) -> list[tuple[int, int, Address]] | None:
    if not isinstance(answer, list):
        return None
    found = []
    for first, last, master, *_ in answer:
        host = master[0].decode() if master[0] else ""
        found.append((int(first), int(last), Address(host=host or asked.host, port=int(master[1]))))
    return found or None
