"""This process among its peers: one row with one lease that covers everything it holds.

The store's clock decides for others whether we are dead; our own clock decides for ourselves, and
sooner: the lease counts from before the renewal was asked for, so we stop sending (`is_held`)
before anybody may take over. That clock runs on while the process is frozen and while the machine
is suspended.
"""

from collections.abc import Callable
from typing import Final

from ksana.base import log
from ksana.base.clock import Clock, until_beat
from ksana.base.errors import UnavailableError
from ksana.base.instant import SECOND, Micros
from ksana.ports.store import WHOLE, Instance, Share, Store, Tx

LEASE: Final[Micros] = 15 * SECOND
RENEW_EVERY: Final[Micros] = 5 * SECOND
_FOR_GOOD: Final[Micros] = 1 << 62
_RETRY_EVERY: Final[Micros] = SECOND


class Membership:
    """Registers the instance, keeps its lease, ends it in order."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance_id: str,
        host: str,
        version: str,
        every_us: Micros = RENEW_EVERY,
        is_dead: Callable[[Instance], bool] = lambda instance: False,
        on_peers: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`is_dead` tells whether another instance is known to be dead although its lease still
        runs: a restart on the same machine then need not wait for the lease, and the gap between
        the two lives is known for what it is. `on_peers` is called, with every sign of life on a
        store that several may share, how many others live there."""
        self.instance_id = instance_id
        self._store = store
        self._clock = clock
        self._host = host
        self._version = version
        self._is_dead = is_dead
        self._on_peers = on_peers
        self._every_us = every_us
        self._held_until: Micros = 0
        self._is_draining = False
        self.generation = 0
        """Rises whenever the lease was lost and is held again: what was claimed before may be
        another's now."""
        self.share: Share = WHOLE
        """Which part of what falls due is ours, as of the last sign of life. Others may see it
        otherwise for some seconds, so it says who does something first, never who alone may."""

    def is_held(self) -> bool:
        """Whether our lease is certain. False means: start nothing that another instance might take
        over.

        On a store that admits one server nobody can, however long we were frozen.
        """
        until = self._held_until
        return until == _FOR_GOOD or self._clock.boottime() < until

    def covers(self, generation: int) -> bool:
        """Whether what was claimed under this generation is certainly still ours. Asked right
        before every call leaves, so it must cost far less than a microsecond."""
        until = self._held_until
        return generation == self.generation and (
            until == _FOR_GOOD or self._clock.boottime() < until
        )

    async def join(self) -> Instance:
        """Enter ourselves, or enter again after our row was removed."""
        asked_at = self._clock.boottime()
        instance, others = await self._store.transact(
            _register,
            self.instance_id,
            self._host,
            self._version,
            LEASE,
            self._store.sole,
            self._is_dead,
        )
        self._hold_until(asked_at + LEASE)
        self._see(others)
        return instance

    async def begin_drain(self) -> None:
        """Nothing is fired from now on: what falls due while we drain belongs to the outage that
        follows, if nobody else runs. The lease is kept until `leave`."""
        await self._renew()
        self._is_draining = True

    async def run(self) -> None:
        """Renew for ever. While the store is away it tries every second: the lease may still be
        saved."""
        while True:
            pause_us = self._every_us if await self._renew() else _RETRY_EVERY
            if self._store.sole:
                pause_us = until_beat(self._clock.monotonic(), pause_us)
            await self._clock.sleep_until(self._clock.now() + pause_us)

    async def leave(self) -> None:
        """Record an orderly end, if the store can be reached."""
        self._held_until = 0
        try:
            await self._store.transact(_stop, self.instance_id)
        except UnavailableError as error:
            log.warning("the end of this instance could not be recorded", err=str(error))

    async def _renew(self) -> bool:
        asked_at = self._clock.boottime()
        was_held = self.is_held()
        try:
            is_known, others = await self._store.transact(
                _renew, self.instance_id, LEASE, self._store.sole, self._is_draining
            )
        except UnavailableError as error:
            if was_held and not self.is_held():
                log.warning("lease lost: the store does not answer", err=str(error))
            return False
        if is_known:
            self._hold_until(asked_at + LEASE)
            self._see(others)
            if not was_held:
                log.info("lease held again")
        else:
            log.warning("this instance was forgotten by the store; entering again")
            await self.join()
        return True

    def _see(self, others: list[str]) -> None:
        """Take note of who else lives."""
        self.share = divide_shares([*others, self.instance_id])[self.instance_id]
        self._on_peers(len(others))

    def _hold_until(self, until: Micros) -> None:
        # Judged after the answer came: the old lease may have run out while the store was asked.
        if self._store.sole:
            until = _FOR_GOOD
        elif not self.is_held():
            self.generation += 1
        self._held_until = until


def _register(
    tx: Tx,
    instance_id: str,
    host: str,
    version: str,
    lease_us: Micros,
    sole: bool,
    is_dead: Callable[[Instance], bool],
) -> tuple[Instance, list[str]]:
    others = _list_living_others(tx, instance_id)
    dead = tuple(one.id for one in others if is_dead(one))
    living = [] if sole else [one.id for one in others if one.id not in dead]
    return tx.instances.register(instance_id, host, version, lease_us, sole, dead), living


def _renew(
    tx: Tx, instance_id: str, lease_us: Micros, sole: bool, is_draining: bool
) -> tuple[bool, list[str]]:
    is_known = tx.instances.renew_if_registered(instance_id, lease_us, is_draining)
    others = [] if sole else _list_living_others(tx, instance_id)
    return is_known, [one.id for one in others]


def divide_shares(instance_ids: list[str]) -> dict[str, Share]:
    """Disjoint shares that cover everything, the same for whoever sees the same instances."""
    ids = sorted(set(instance_ids))
    return {each: Share(place, len(ids)) for place, each in enumerate(ids)}


def _list_living_others(tx: Tx, instance_id: str) -> list[Instance]:
    instances = tx.instances.list_instances()
    return [
        one
        for one in instances
        if one.id != instance_id and one.stopped_at is None and one.lease_until > tx.now
    ]


def _stop(tx: Tx, instance_id: str) -> None:
    tx.instances.stop(instance_id)
