"""The composition root: from settings to a running server, and back down in order.

Up: listen → open the store (or wait for it, answering probes) → enter ourselves among the instances
→ start the loops. Down (X14): stop taking work and wait for what runs, up to the grace → stop
listening → stop the loops → leave → flush.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry

from ksana import __version__
from ksana.api.core.app import create_app
from ksana.api.core.connection_guard import ConnectionGuard
from ksana.api.core.health import StatsSections
from ksana.api.core.server import Server, make_config
from ksana.api.core.services import ApiSettings, Check
from ksana.base import log
from ksana.base.clock import Clock, SystemClock
from ksana.base.errors import SetupError, UnavailableError
from ksana.base.instant import SECOND, Micros
from ksana.boot import banner, instance_identity, secrets
from ksana.boot.commit_watch import CommitWatch
from ksana.boot.coordination import CoordinationNotes
from ksana.boot.core_routes import core_routes
from ksana.boot.descriptors import plan_for
from ksana.boot.interpreter import freeze_loaded
from ksana.boot.listening import describe_address, is_loopback, listen, share_listener
from ksana.boot.logs import LogSwitch
from ksana.boot.metrics import Metrics
from ksana.boot.redaction import mask_url
from ksana.boot.settings.sections.tasks import TimerSettings
from ksana.boot.settings.sources import Loaded, Value
from ksana.boot.settings.table import Settings
from ksana.boot.stores import Jobs, wait_for_store
from ksana.boot.surface import CoreServices, Surface
from ksana.boot.surfaces import make_surfaces
from ksana.boot.tracing import FLUSH_WITHIN, start_tracing
from ksana.boot.unopened_store import UnopenedStore
from ksana.domain import events as core_events
from ksana.domain.tasks.timer_document import TimerDefaults
from ksana.domain.zones import rules_version
from ksana.engine.core.clock_watch import ClockWatch, watch_loop_lag
from ksana.engine.core.membership import RENEW_EVERY, Membership
from ksana.engine.core.retention import Retention, add_core_rows
from ksana.engine.core.supervisor import Loop, Supervisor
from ksana.service.core.dead_letters import DeadLetterService
from ksana.service.core.events import EventLog
from ksana.service.core.keys import KeyRing

LOCAL_RENEW_EVERY: Final[Micros] = SECOND
"""On a store of our own a sign of life each second dates an outage to it; the whole idle server
took 0.13 % of a core."""

_STOP_WITHIN: Final[Micros] = 5 * SECOND
"""For loops to end after the grace: they only have to notice that they are cancelled."""


class Seen(msgspec.Struct, frozen=True):
    """What the API layer is given (its `Services`)."""

    store: UnopenedStore
    clock: Clock
    settings: ApiSettings
    metrics: CollectorRegistry
    keys: KeyRing
    events: EventLog
    server: "KsanaServer"

    def is_open(self) -> bool:
        """Ask whether the store was opened."""
        return self.store.is_open

    def readiness(self) -> list[Check]:
        """Ask the server how everything fares."""
        return self.server.readiness()


class KsanaServer:
    """One running server. `run` is its whole life; `begin_stop` asks for its end."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        random: Random | None = None,
        logs: LogSwitch | None = None,
        values: tuple[Value, ...] = (),
    ) -> None:
        self._settings, self._values = settings, values
        self._logs = logs or LogSwitch(log.current(), settings.logging.level, "console", False)
        self._clock = clock = clock or SystemClock()
        self._random = random = random or Random()
        self._stop_asked = asyncio.Event()
        self._store = UnopenedStore(mask_url(settings.store.url))
        self._metrics = metrics = Metrics(clock, __version__)
        metrics.watch_store(lambda: self._store.health())
        self._commits = CommitWatch()
        metrics.on_scrape(self._commits.collect_alerts)
        self._supervisor = Supervisor(clock, random, metrics.loop_restarted)
        self._events = EventLog(self._store, clock)
        self._keys = KeyRing(self._store, clock)
        self._box = secrets.open_box(settings)
        self._descriptors = plan_for(settings)
        self._dead_letters = DeadLetterService(self._store)
        self._is_local = is_loopback(settings.server.host)
        self._coordination = CoordinationNotes(settings.coordination.url)
        self._membership = self._make_membership()
        me = self._membership.instance_id
        self._spans = start_tracing(settings.tracing, os.environ, clock, me)
        self._retention = Retention(self._store, clock, me)
        add_core_rows(self._retention, settings.store.retention_us)
        self._core = CoreServices(
            settings=settings,
            api_settings=_api_settings(settings, self._is_local),
            clock=clock,
            random=random,
            store=self._store,
            metrics=metrics,
            commits=self._commits,
            membership=self._membership,
            retention=self._retention,
            events=self._events,
            dead_letters=self._dead_letters,
            keys=self._keys,
            descriptors=self._descriptors,
            secrets=self._box,
            spans=self._spans,
        )
        self._surfaces: tuple[Surface, ...] = make_surfaces(self._core)
        self._dead_letters.add_retention(self._retention, settings.store.dead_letter_retention_us)
        self._http = self._make_http()

    def _make_membership(self) -> Membership:
        here = instance_identity.find_host()
        return Membership(
            self._store,
            self._clock,
            instance_identity.make_instance_id(self._settings.coordination.instance_id),
            here,
            __version__,
            self._renew_every,
            lambda other: instance_identity.is_dead(other, here),
            self._coordination.see_peers,
        )

    def _make_http(self) -> Server:
        stats = StatsSections()
        for surface in self._surfaces:
            if surface.stats is not None:
                stats.add(surface.name, surface.stats)
        seen = Seen(
            store=self._store,
            clock=self._clock,
            settings=self._core.api_settings,
            metrics=self._metrics.registry,
            keys=self._keys,
            events=self._events,
            server=self,
        )
        core = core_routes(self._dead_letters, self._keys, self._values)
        routes = [surface.routes for surface in self._surfaces]
        app = create_app(
            seen,
            core,
            *routes,
            stats=stats,
            spans=self._spans,
            logs=self._logs,
            words={surface.name: surface.words for surface in self._surfaces},
        )
        server = self._settings.server
        grace_sec = -(-server.graceful_timeout_us // SECOND)
        guard = ConnectionGuard(self._descriptors.connections, self._settings.limits.connections)
        self._metrics.registry.register(guard)
        config = make_config(
            app,
            server.host,
            server.port,
            graceful_sec=grace_sec,
            max_connections=guard.total,
            guard=guard,
        )
        return Server(config, self._events.close, guard)

    def begin_stop(self) -> None:
        """Ask for an orderly end."""
        self._stop_asked.set()

    def readiness(self) -> list[Check]:
        """Tell how the store, the lease, the loops and the surfaces fare, without waiting for any
        of them."""
        health = self._store.health()
        checks = [Check("store", health.ok, health.reason), self._coordination.check()]
        if self._store.is_open:
            is_held = self._membership.is_held()
            checks.append(
                Check(
                    "lease", is_held, None if is_held else "the lease of this instance has run out"
                )
            )
        for report in self._supervisor.readiness():
            problem = (
                None
                if report.ok
                else f"{report.state} after {report.restarts} restarts: {report.last_error}"
            )
            checks.append(Check(f"loop {report.name}", report.ok, problem))
        for surface in self._surfaces:
            checks += surface.readiness() if surface.readiness is not None else []
        if self._stop_asked.is_set():
            checks.append(Check("shutdown", False, "the server is going down"))
        return checks

    async def run(self, listener: socket.socket) -> int:
        """Serve until told to stop. Raise SetupError if it cannot be."""
        settings = self._settings
        address = describe_address(settings.server.host, listener)
        http = asyncio.create_task(self._http.serve(sockets=share_listener(listener)), name="http")
        opening = asyncio.create_task(self._come_up(address), name="opening")
        stopping = asyncio.create_task(self._stop_asked.wait(), name="stopping")
        try:
            await asyncio.wait((opening, stopping, http), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()  # a SetupError ends the start here
                await asyncio.wait((stopping, http), return_when=asyncio.FIRST_COMPLETED)
            if http.done() and not stopping.done():
                http.result()
                raise SetupError("the HTTP server ended by itself")
            await _cancelled(opening)
            await self._drain()
        finally:
            await _cancelled(opening)
            await _cancelled(stopping)
            self._http.stop()
            await asyncio.gather(http, return_exceptions=True)
            await self._go_down()
            listener.close()
        return 0

    async def _come_up(self, address: str) -> None:
        settings, clock = self._settings, self._clock
        store = await wait_for_store(
            self._store,
            settings.store.url,
            clock,
            self._random,
            migrate=settings.store.migrate,
            jobs=_jobs(settings),
            durability=settings.store.durability,
        )
        kinds = [kind for surface in self._surfaces for kind in surface.events]
        self._commits.start(store, [*core_events.KINDS, *kinds])
        self._store.attach(store)
        await secrets.unlock(store, self._box, self._surfaces)
        await self._keys.refresh()
        if not self._is_local and not self._keys.any_made and not settings.server.insecure:
            raise SetupError(
                f"{settings.server.host} can be reached by others and no API key exists: "
                "make one with `ksana key create`, listen on 127.0.0.1, "
                "or allow it with --insecure."
            )
        found = await banner.take_stock(store, self._surfaces)
        await self._membership.join()
        start = self._start_loop
        start(Loop("membership", self._membership.run))
        watch = ClockWatch(
            clock,
            self._metrics.clock_stepped,
            None if store.sole else self._store_now,
            self._metrics.clock_skewed,
        )
        start(Loop("clock-watch", watch.run))
        start(Loop("loop-lag", lambda: watch_loop_lag(clock, self._metrics.loop_lag)))
        start(Loop("retention", self._retention.pump.run))
        for surface in self._surfaces:
            for loop in surface.loops:
                start(loop)
        freeze_loaded()
        is_shown = self._logs.form == "console" or sys.stdout.isatty()
        banner.announce(address, store.url, found, is_shown=is_shown)

    def _start_loop(self, loop: Loop) -> None:
        self._metrics.loop_started(loop.name)
        self._supervisor.start(loop)

    @property
    def _renew_every(self) -> Micros:
        # Asked before the store is open, so judged by the URL.
        is_file = self._settings.store.url.startswith(("sqlite:", "json:"))
        return LOCAL_RENEW_EVERY if is_file else RENEW_EVERY

    async def _store_now(self) -> int:
        return await self._store.read(lambda tx: int(tx.now))

    async def _drain(self) -> None:
        """Stop taking work, wait for what runs; what is left after the grace is for the orphan
        rule."""
        log.info("stopping", grace_ms=self._settings.server.graceful_timeout_us // 1000)
        drains = [surface.drain for surface in self._surfaces if surface.drain is not None]
        if not drains:
            return
        # Before anything stops: what falls due from here on belongs to the outage that may follow.
        await self._membership.begin_drain()
        tasks = [asyncio.ensure_future(drain()) for drain in drains]
        done, late = await asyncio.wait(
            tasks, timeout=self._settings.server.graceful_timeout_us / SECOND
        )
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a surface failed to drain", exc_info=error)
        for task in late:
            await _cancelled(task)

    async def _go_down(self) -> None:
        late = await self._supervisor.stop(_STOP_WITHIN)
        if late:
            log.warning("loops did not end in time", loops=list(late))
        await self._keys.close()
        await self._events.close()
        if self._store.is_open:
            await self._membership.leave()
        with contextlib.suppress(UnavailableError):
            await self._store.close()
        if self._spans is not None:
            await self._spans.close(min(FLUSH_WITHIN, self._settings.server.graceful_timeout_us))
        log.info("stopped")


def _api_settings(settings: Settings, is_local: bool) -> ApiSettings:
    server = settings.server
    return ApiSettings(
        version=__version__,
        bind_is_loopback=is_local,
        open_without_keys=is_local or server.insecure,
        allowed_hosts=server.allowed_hosts,
        allowed_origins=server.allowed_origins,
        tzdata_version=rules_version(),
        serves_metrics=settings.metrics.enabled,
        rate=settings.limits.rate,
    )


def _jobs(settings: Settings) -> Jobs:
    timers = settings.section(TimerSettings)
    defaults = TimerDefaults(timers.default_timeout_us, timers.max_retries, timers.retry_backoff_us)
    return Jobs(defaults, Path(settings.store.data_dir, "jobs.json"))


async def serve(loaded: Loaded, logs: LogSwitch | None = None) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends it at once. Answer the exit code."""
    settings = loaded.settings
    listener = listen(settings.server.host, settings.server.port)
    # For port 0 a free one was taken: callbacks come there, and no task may call it.
    bound = msgspec.structs.replace(settings.server, port=listener.getsockname()[1])
    settings = msgspec.structs.replace(settings, server=bound)
    server = KsanaServer(settings, logs=logs, values=loaded.values)
    loop = asyncio.get_running_loop()
    signals: list[int] = []

    def on_signal(number: int) -> None:
        signals.append(number)
        if len(signals) > 1:
            os._exit(128 + number)
        server.begin_stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        if sys.platform == "win32":
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(on_signal, number))
        else:
            loop.add_signal_handler(number, on_signal, number)
    try:
        return await server.run(listener)
    finally:
        if sys.platform != "win32":
            for number in numbers:
                loop.remove_signal_handler(number)


async def _cancelled(
    task: "asyncio.Future[None] | asyncio.Task[bool] | asyncio.Task[None]",
) -> None:
    """Cancel a task and wait for its end; what it raised was seen or does not matter any more."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
