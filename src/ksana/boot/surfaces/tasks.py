"""The tasks surface (T and C), put together: services, engine, routes, metrics."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ksana import __version__
from ksana.api.core.routing import AnyRoute
from ksana.api.tasks import backfill as backfill_api
from ksana.api.tasks import callbacks as callbacks_api
from ksana.api.tasks import definitions as tasks_api
from ksana.api.tasks import explain as explain_api
from ksana.api.tasks import forecast as forecast_api
from ksana.api.tasks import ledger as ledger_api
from ksana.api.tasks import runs as runs_api
from ksana.api.tasks import schedules as schedules_api
from ksana.api.tasks import series as series_api
from ksana.api.tasks import simulate as simulate_api
from ksana.api.tasks import timers as timers_api
from ksana.api.tasks.members import Defaults, TaskSurface
from ksana.base.clock import Clock
from ksana.base.instant import HOUR, SECOND, Instant, Micros
from ksana.boot.metrics import LABEL_CAP
from ksana.boot.settings.sections.tasks import CallbackSettings, TaskSettings, TimerSettings
from ksana.boot.surface import CoreServices, Surface, words_of
from ksana.boot.task_calls import find_callback_base, make_caller_factory
from ksana.boot.task_hints import TaskHints
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks.changes import METRIC_OF
from ksana.domain.tasks.events import KINDS
from ksana.domain.tasks.records import NODE_PLACE, QUEUE_PLACE
from ksana.domain.tasks.sealing import CLEAR, GONE, UNKNOWN
from ksana.domain.zones import rules_version
from ksana.engine.core.pump import Pump
from ksana.engine.core.supervisor import Loop
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.delivery import Delivery
from ksana.engine.tasks.firing import FiringEngine
from ksana.engine.tasks.node_runs import NodeRuns
from ksana.engine.tasks.queue_runs import QueueRuns
from ksana.engine.tasks.recorder import RunObserver
from ksana.engine.tasks.rescue import RescueEngine
from ksana.engine.tasks.resealing import Resealer
from ksana.engine.tasks.run_history import RunHistory, add_run_history
from ksana.engine.tasks.task_secrets import TaskSecrets
from ksana.engine.tasks.zone_rules import ZoneRules
from ksana.ports.handover import NO_NODES, NO_QUEUE, QueueJobs, RunNodeJobs
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.callbacks import CallbackService
from ksana.service.tasks.dead_letters import make_section as make_letter_section
from ksana.service.tasks.definitions import TaskService
from ksana.service.tasks.explain import ExplainService
from ksana.service.tasks.forecast import ForecastService
from ksana.service.tasks.ledger import LedgerService
from ksana.service.tasks.runs import RunService
from ksana.service.tasks.series import RunSeriesService

ORDER: Final = 10
_DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LATENESS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_SCANS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
FIGURES_EVERY: Final[Micros] = 10 * SECOND
FIGURES_SHARE: Final = 500
"""Reading the figures takes at most this part of the time: a million tasks take longer to count."""


class TaskMetrics:
    """The names of seed 004, and what firing and delivery count."""

    def __init__(self, core: CoreServices) -> None:
        metrics = core.metrics
        self._commits = core.commits
        metrics.on_scrape(self._collect_ends)
        self._durations = metrics.histogram(
            "cronjob_run_duration_seconds", "Length of attempts.", ("task_id",), _DURATIONS
        )
        self._retries = metrics.counter("cronjob_run_retries_total", "Retries.", ("task_id",))
        self._requests = metrics.counter(
            "cronjob_http_request_total", "Calls to targets.", ("method", "code")
        )
        self._misfires = metrics.counter(
            "cronjob_misfire_total", "Slots that fell due while nobody ran.", ("task_id",)
        )
        self._scan = Histogram(
            "cronjob_scheduler_scan_latency",
            "Length of one firing pass.",
            buckets=_SCANS,
            registry=metrics.registry,
        )
        self._fired = metrics.plain_counter("ksana_tasks_fired_total", "Tasks fired.")
        self._lateness = metrics.histogram(
            "ksana_run_lateness_seconds", "From a slot's time to its first call.", (), _LATENESS
        ).child()
        self._spans = core.spans

    def _collect_ends(self) -> Iterable[Any]:
        """Every end of a run, whoever made it; each is there at 0 from the start."""
        ends = CounterMetricFamily("cronjob_run_total", "Runs by final status.", labels=("status",))
        for status in sorted(RUN.final):
            ends.add_metric((status,), self._commits.count(METRIC_OF[status]))
        misfires = self._commits.count("misfires")
        return [
            ends,
            CounterMetricFamily(
                "ksana_misfires_total", "Slots that nobody was there for.", value=misfires
            ),
        ]

    def know_tasks(self, task_ids: Iterable[int]) -> None:
        """Begin the series of these tasks at 0, while there is room for more."""
        for task_id in task_ids:
            self._misfires.begin(task_id)
            self._retries.begin(task_id)

    def scanned(self, seconds: float, fired: int) -> None:
        self._scan.observe(seconds)
        if fired:
            self._fired.inc(fired)

    def misfired(self, task_id: int, count: int) -> None:
        self._misfires.child(task_id).inc(count)

    def called(self, over: AttemptOver) -> None:
        code = over.reply.status if over.reply.status is not None else over.reply.kind
        held = over.held
        self._requests.child(held.task.definition.http_method, code).inc()
        if held.due_at is not None:
            self._lateness.observe((over.started_at - held.due_at) / SECOND)
        if self._spans is not None:
            self._spans.called(over)

    def recorded(self, ended: Sequence[tuple[AttemptOver, str]]) -> None:
        for over, status in ended:
            task_id = over.held.task.id
            self._durations.child(task_id).observe((over.ended_at - over.started_at) / SECOND)
            if status == "RETRYING":
                self._retries.child(task_id).inc()


class TaskFigures:
    """The gauges of seed 004, read now and then and shown from memory: a scrape never waits for the
    store."""

    def __init__(
        self, store: Store, clock: Clock, know_tasks: Callable[[Iterable[int]], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._know_tasks = know_tasks
        self._known = 0
        self._latest: tuple[dict[str, int], int] | None = None
        self.pump = Pump(
            "task-figures", clock, self.sample, HOUR
        )  # it tells itself when to look again

    async def sample(self) -> Instant | None:
        """Read both; tell when to read again."""
        began = self._clock.monotonic()
        self._latest = await self._store.read(_figures)
        count = sum(self._latest[0].values())
        if self._known < count <= LABEL_CAP:
            self._know_tasks(await self._store.read(_list_ids, LABEL_CAP))
            self._known = count
        return self._clock.now() + max(
            FIGURES_EVERY, (self._clock.monotonic() - began) * FIGURES_SHARE
        )

    def collect(self) -> Iterable[Any]:
        """Show what was read last; nothing before the first time."""
        if self._latest is None:
            return []
        by_status, pending = self._latest
        tasks = GaugeMetricFamily(
            "cronjob_task_total", "Living tasks by status.", labels=("status",)
        )
        for status in ("ENABLED", "DISABLED"):
            tasks.add_metric((status,), by_status.get(status, 0))
        return [
            tasks,
            GaugeMetricFamily(
                "cronjob_callback_pending", "Runs that wait for a callback.", value=pending
            ),
        ]


def make_surface(core: CoreServices) -> Surface:
    """Put the surface together."""
    settings, store, clock = core.settings, core.store, core.clock
    limits, me = settings.section(TaskSettings), core.membership.instance_id
    metrics, history = TaskMetrics(core), RunHistory(store, clock)
    figures = TaskFigures(store, clock, metrics.know_tasks)
    secrets = TaskSecrets(core.secrets)
    resealer = Resealer(store, clock, secrets)
    delivery = _make_delivery(core, metrics, (history,), secrets)
    firing = FiringEngine(
        store,
        clock,
        me,
        delivery.dispatcher.slot_budget,
        delivery.dispatcher.take,
        delivery.claimer.add,
        metrics,
        batch_limit=limits.batch_limit,
        poll_us=limits.poll_interval_us,
        secrets=secrets,
        share=lambda: core.membership.share,
    )
    queue_runs, node_runs = _make_job_runs(core, delivery, (metrics, history))
    rescue = RescueEngine(
        store,
        clock,
        me,
        delivery.ready,
        lambda: delivery.known_runs() | node_runs.known_runs(),
        queue_runs,
        lambda: node_runs.are_jobs_kept,
    )
    delivery.on_wakes = rescue.wakes.signal
    hints = TaskHints(firing, delivery, core.signals, clock)
    surface = _make_services(core, hints, queue_runs.jobs, secrets)

    async def drain() -> None:
        firing.stop()
        queue_runs.stop()
        await _drain(delivery, node_runs)

    core.dead_letters.add(make_letter_section(hints, secrets))
    add_run_history(core.retention, settings.store.retention_us)
    core.metrics.on_scrape(figures.collect)
    core.metrics.on_scrape(lambda: _call_families(delivery, limits.workers))
    rescues = (rescue.wakes, rescue.rescue, rescue.promote)
    pumps = (
        *delivery.pumps,
        *rescues,
        queue_runs.pump,
        node_runs.pump,
        firing.pump,
        firing.steps.pump,
        ZoneRules(store, clock, me, rules_version(), firing.hint).pump,
        history.pump,
        figures.pump,
        resealer.pump,
    )
    return Surface(
        name="tasks",
        events=KINDS,
        words=words_of("tasks"),
        routes=(
            *_list_routes(surface),
            *explain_api.routes(ExplainService(store, queue_runs.jobs), surface.backfills),
            *backfill_api.routes(surface.backfills, clock),
            *ledger_api.routes(_make_ledger(core), clock),
            *forecast_api.routes(ForecastService(store, clock), clock),
            *series_api.routes(RunSeriesService(store)),
        ),
        loops=tuple(Loop(pump.name, pump.run) for pump in pumps),
        found=_found,
        seals=_list_seals,
        stats=lambda: store.read(_stats),
        drain=drain,
    )


def _make_job_runs(
    core: CoreServices, delivery: Delivery, observers: tuple[RunObserver, ...]
) -> tuple[QueueRuns, NodeRuns]:
    """Who does the runs that no host is called for."""
    store, clock, me = core.store, core.clock, core.membership.instance_id
    jobs: QueueJobs = core.offers.get("queue", NO_QUEUE)
    nodes: RunNodeJobs = core.offers.get("node", NO_NODES)
    queue_runs = QueueRuns(store, clock, jobs, me, observers, delivery.on_handled)
    node_runs = NodeRuns(store, clock, nodes, me, core.membership, delivery.recorder.add)
    delivery.on_places |= {QUEUE_PLACE: queue_runs.ready, NODE_PLACE: node_runs.ready}
    delivery.on_abort = node_runs.abort
    return queue_runs, node_runs


async def _drain(delivery: Delivery, node_runs: NodeRuns) -> None:
    try:
        await asyncio.gather(node_runs.drain(), delivery.drain())
        await delivery.drain()  # what the last node jobs came to is written as well
    finally:
        node_runs.close()
        delivery.close()


def _make_delivery(
    core: CoreServices,
    metrics: TaskMetrics,
    others: tuple[RunObserver, ...],
    secrets: TaskSecrets,
) -> Delivery:
    limits = core.settings.section(TaskSettings)
    return Delivery(
        core.store,
        core.clock,
        make_caller_factory(core),
        core.membership.instance_id,
        core.membership,
        metrics,
        others,
        workers=limits.workers,
        per_host=limits.per_host,
        callback_base=find_callback_base(core.settings),
        agent=f"ksana/{__version__}",
        secrets=secrets,
    )


def _make_services(
    core: CoreServices, hints: TaskHints, jobs: QueueJobs, secrets: TaskSecrets
) -> TaskSurface:
    settings, store, clock = core.settings, core.store, core.clock
    callback, timers = settings.section(CallbackSettings), settings.section(TimerSettings)
    return TaskSurface(
        tasks=TaskService(store, clock, hints, timers.once_grace_us, secrets),
        runs=RunService(store, hints, jobs, secrets),
        callbacks=CallbackService(
            store, clock, hints, callback.token_ttl_us, callback.identity_mode, secrets
        ),
        defaults=_defaults(core),
        clock=clock,
        backfills=BackfillService(store, hints, timers.once_grace_us, secrets),
        queue_jobs=jobs,
    )


def _make_ledger(core: CoreServices) -> LedgerService:
    timers = core.settings.section(TimerSettings)
    return LedgerService(core.store, core.settings.store.retention_us, timers.once_grace_us)


def _call_families(delivery: Delivery, workers: int) -> Iterable[Any]:
    return [
        GaugeMetricFamily("ksana_calls_in_flight", "Calls under way.", value=delivery.in_flight),
        GaugeMetricFamily("ksana_call_workers", "Calls that may be under way.", value=workers),
    ]


def _list_routes(surface: TaskSurface) -> list[AnyRoute]:
    modules = (timers_api, tasks_api, runs_api, callbacks_api, schedules_api, simulate_api)
    return [route for module in modules for route in module.routes(surface)]


def _found(tx: TasksTx) -> dict[str, int]:
    return {"tasks": sum(tx.task_lists.count_by_status().values())}


def _list_seals(tx: TasksTx) -> list[str]:
    return [seal for seal in tx.task_seals.list_seals() if seal not in (CLEAR, GONE, UNKNOWN)]


def _figures(tx: TasksTx) -> tuple[dict[str, int], int]:
    return tx.task_lists.count_by_status(), tx.runs.count_pending_callbacks()


def _list_ids(tx: TasksTx, limit: int) -> list[int]:
    return [task.id for task in tx.tasks.list_tasks(limit=limit)]


def _stats(tx: TasksTx) -> dict[str, object]:
    return {
        "by_status": tx.task_lists.count_by_status(),
        "callbacks_pending": tx.runs.count_pending_callbacks(),
    }


def _defaults(core: CoreServices) -> Defaults:
    timers, tasks = core.settings.section(TimerSettings), core.settings.section(TaskSettings)
    return Defaults(
        timer_timeout_us=timers.default_timeout_us,
        timer_max_retries=timers.max_retries,
        timer_retry_backoff_us=timers.retry_backoff_us,
        request_timeout_us=tasks.request_timeout_us,
        max_retries=tasks.max_retries,
        misfire_grace_us=tasks.misfire_grace_us,
        max_queued=tasks.max_queued,
        history_limit=tasks.history_limit,
        response_limit=tasks.response_limit or None,
        follow_redirects=tasks.follow_redirects,
        on_orphan=tasks.on_orphan,
        delivery=tasks.delivery,
        dst_gap=_dst(tasks.dst_gap),
        dst_overlap=_dst(tasks.dst_overlap),
        retry_on_callback_failure=tasks.retry_on_callback_failure,
    )


def _dst(choice: str) -> Any:
    """`debian` is the rule built into the timetable: fixed times and steps differ."""
    return None if choice == "debian" else choice
