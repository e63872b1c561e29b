"""What must be done again and again: presence and owners renewed, snapshots written and read,
silent sockets found."""

import asyncio
from typing import Final

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.domain.nodes.frames import Ping
from ksana.domain.nodes.records import InstanceInfo, OwnerKind
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.home import HomeJobs
from ksana.engine.nodes.hosting import Hosting
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import LOST_OWNER, SILENT, Peer
from ksana.engine.nodes.sessions import Sessions
from ksana.engine.nodes.view import NodeView
from ksana.ports.fabric import Fabric

_WHOLE_EVERY: Final[Micros] = 10 * SECOND
"""How often the whole view is read: it finds nodes that ran out in silence."""

_LIVING_EVERY: Final[Micros] = 2 * SECOND
"""How often we look who lives: the jobs of a dead instance's nodes wait for it."""

_CALM_EVERY: Final[Micros] = 5 * SECOND
"""How often we look whether somebody is here where nobody was."""

_SWEEP_EVERY: Final[Micros] = MINUTE


class Upkeep:
    """Three pumps: life, view, silence."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Clock,
        info: InstanceInfo,
        hosting: Hosting,
        sessions: Sessions,
        home: HomeJobs,
        view: NodeView,
        settings: NodeParameters,
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._info = info
        self._hosting = hosting
        self._sessions = sessions
        self._home = home
        self._view = view
        self._settings = settings
        self._mark = 0
        self._whole_mono: Micros = 0
        self._swept_mono: Micros = clock.monotonic()
        self._living: frozenset[str] = frozenset()
        self._looked_mono: Micros = 0
        self._trusted_mono: Micros = 0
        """From when on it means something that an instance or a node is not listed."""
        self._is_known = False
        """Whether we have said that we live."""
        self._missed_mono: Micros = 0
        """Until when that was forgotten, and others may be alive and forgotten too."""
        # Long enough for everybody to have renewed what is its own.
        self._settle_us = settings.presence_ttl_us // 3 + settings.heartbeat_us + SECOND
        renew_us = min(settings.presence_ttl_us, settings.owner_ttl_us) // 3
        self.life = Pump("node-presence", clock, self._renew, poll_us=renew_us)
        self._is_calm = False
        """Whether nobody was here or elsewhere when we last looked."""
        rest_us = max(settings.refresh_us, _CALM_EVERY)
        self.view = Pump("node-view", clock, self.refresh, poll_us=rest_us)
        hosting.on_enter = sessions.on_enter = self._stir
        self.silence = Pump(
            "node-silence", clock, self._find_silent, poll_us=settings.heartbeat_us // 3
        )

    def can_judge(self) -> bool:
        """Whether an instance that is not present is dead: not right after the fabric was away or
        lost its memory, for then nobody is present."""
        is_steady = self._fabric.health().ok_us >= self._settle_us
        return is_steady and self._clock.monotonic() >= self._missed_mono

    async def _renew(self) -> Instant | None:
        settings = self._settings
        # Before we write ourselves down: afterwards nobody could tell that we were missing.
        await self._look_who_lives(self._clock.monotonic())
        await self._fabric.inbox.open()
        info = InstanceInfo(
            instance_id=self._info.instance_id,
            host=self._info.host,
            version=self._info.version,
            started_at=self._info.started_at,
            nodes=len(self._hosting.nodes),
            sessions=len(self._sessions.local),
        )
        await self._fabric.presence.renew(info, settings.presence_ttl_us)
        self._is_known = True
        nodes = {node_id: hosted.peer for node_id, hosted in self._hosting.nodes.items()}
        await self._renew_owners("node", nodes)
        await self._renew_owners("session", dict(self._sessions.local))
        await self._sessions.roll.renew()
        for hosted in list(self._hosting.nodes.values()):
            if hosted.record.is_draining:
                await self._fabric.marks.set_draining(
                    hosted.record.node_id, True, settings.remove_stale_us
                )
        return None

    async def _renew_owners(self, kind: OwnerKind, peers: dict[str, Peer]) -> None:
        ids = list(peers)
        kept = await self._fabric.owners.renew(kind, ids, self._settings.owner_ttl_us)
        for owned_id, is_ours in zip(ids, kept, strict=True):
            if not is_ours:
                log.warning("another instance owns it by now", kind=kind, id=owned_id)
                peers[owned_id].close(LOST_OWNER, "OWNED_ELSEWHERE")

    async def refresh(self) -> Instant | None:
        """Write what changed of our nodes, read what changed of all. Where nobody is there is
        nothing to write or to read, and a server without nodes pays nothing for them."""
        was_calm, self._is_calm = self._is_calm, self._is_nobody_here()
        if not (was_calm and self._is_calm):
            await self._write_and_read()
        return None if self._is_calm else self._clock.now() + self._settings.refresh_us

    def _stir(self) -> None:
        if self._is_calm:
            self.view.signal()

    def _is_nobody_here(self) -> bool:
        return self._fabric.is_alone and not (
            self._hosting.nodes
            or self._sessions.local
            or self._sessions.has_kept
            or self._home.jobs
            or self._home.endings.has_ended
            or len(self._view)
        )

    async def _write_and_read(self) -> None:
        await asyncio.gather(
            self._publish(), self._sessions.roll.write(), self._home.endings.strike()
        )
        now_mono = self._clock.monotonic()
        is_whole = now_mono >= self._whole_mono + _WHOLE_EVERY or not self._mark
        is_looked = is_whole or now_mono >= self._looked_mono + _LIVING_EVERY
        if is_looked:
            await self._look_who_lives(now_mono)
        changes = await self._fabric.snapshots.read_changes(0 if is_whole else self._mark)
        self._mark = changes.mark
        me = self._fabric.instance_id
        for node_id, node in changes.nodes.items():
            if node_id in self._hosting.nodes:
                continue  # what is here we know better
            if node is None or node.instance_id == me:
                self._forget(node_id)
            else:
                self._view.put(node)
        if is_whole:
            self._whole_mono = now_mono
        if is_looked and now_mono >= self._trusted_mono:
            self._forget_strangers(set(changes.nodes) if is_whole else None)
        if self._home.watch.line:
            self._home.watch.offer.signal()
        await self._sessions.tend()
        if now_mono >= self._swept_mono + _SWEEP_EVERY:
            self._swept_mono = now_mono
            await self._fabric.snapshots.sweep(self._settings.remove_stale_us)

    async def _look_who_lives(self, now_mono: Micros) -> None:
        self._looked_mono = now_mono
        living = await self._fabric.presence.list_living()
        self._living = frozenset(one.instance_id for one in living)
        if self._fabric.instance_id not in self._living:
            # The fabric has lost its memory, or was away for long, or we are new. Until everybody
            # has renewed what is its own, nobody is held to be dead.
            self._trusted_mono = now_mono + self._settle_us
            if self._is_known:
                self._missed_mono = self._trusted_mono
            self._hosting.changed |= set(self._hosting.nodes)
            self.life.signal()
            await self._home.hold_again()

    async def _publish(self) -> None:
        changed, self._hosting.changed = self._hosting.changed, set()
        records = []
        for node_id in changed:
            hosted = self._hosting.nodes.get(node_id)
            if hosted is not None:
                hosted.record.running = len(hosted.assigned)
                records.append(hosted.record)
        try:
            await self._fabric.snapshots.publish(records, self._settings.presence_ttl_us)
        except UnavailableError:
            self._hosting.changed |= changed
            raise

    def _forget_strangers(self, listed: set[str] | None) -> None:
        """Forget nodes whose instance does not live, and those that are not in a whole reading."""
        for node in self._view:
            if node.node_id in self._hosting.nodes:
                continue
            is_listed = listed is None or node.node_id in listed
            if not is_listed or node.instance_id not in self._living:
                self._forget(node.node_id)

    def _forget(self, node_id: str) -> None:
        if self._view.remove(node_id) is not None:
            self._home.node_gone(node_id)

    async def _find_silent(self) -> Instant | None:
        """Ping what has been quiet for a heartbeat, close what stays silent."""
        now_mono, settings = self._clock.monotonic(), self._settings
        nodes = [hosted.peer for hosted in self._hosting.nodes.values()]
        for peer in [*nodes, *self._sessions.local.values()]:
            quiet_us = now_mono - peer.heard_mono
            if quiet_us >= settings.dead_after_us:
                peer.close(SILENT, "SILENT")
            elif quiet_us >= settings.heartbeat_us + SECOND and not peer.is_pinged:
                peer.is_pinged = True
                peer.send(Ping(id="life"))
        return None
