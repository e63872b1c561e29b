"""Governance, plugged in: its service, loops, endpoints, figures, and the audit for the CLI."""

from collections.abc import Iterable
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily

from ksana.api.governance.routes import Governance
from ksana.base.clock import Clock, SystemClock
from ksana.base.errors import SetupError
from ksana.base.instant import SECOND, Instant, Micros
from ksana.boot.callables import load_callable
from ksana.boot.settings.sections.governance import GovernanceSettings
from ksana.boot.settings.table import Settings
from ksana.boot.stores import open_store
from ksana.boot.surface import CoreServices, Surface, listen, words_of
from ksana.domain.governance.events import KINDS
from ksana.domain.governance.records import Rules
from ksana.engine.core.pump import Pump
from ksana.engine.core.supervisor import Loop
from ksana.engine.governance.anchoring import AuditAnchors, purge_audit
from ksana.engine.governance.by_callable import PerformByCallable
from ksana.engine.governance.performing import Perform
from ksana.engine.governance.webhook import perform_by_webhook
from ksana.engine.governance.worker import GovernanceWorker
from ksana.outbound.by_scheme import HttpCaller
from ksana.outbound.egress import EgressPolicy
from ksana.ports.governance.tables import GovernanceTx
from ksana.ports.retention import OldRows, WalkPlace
from ksana.ports.store import Store
from ksana.service.governance.audit import AuditService
from ksana.service.governance.dead_letters import make_section as make_letter_section
from ksana.service.governance.explain import GovernanceExplainer
from ksana.service.governance.figures import GovernanceMetrics, GovernanceStats
from ksana.service.governance.service import GovernanceService

ORDER: Final = 30
FIGURES_EVERY: Final[Micros] = 10 * SECOND
FIGURES_SHARE: Final = 500
"""Reading the figures takes at most this part of the time: a million due jobs take longer."""


def make_surface(core: CoreServices) -> Surface:
    """Build the surface; nothing waits here."""
    settings = core.settings.section(GovernanceSettings)
    _check_worker(settings)
    rules = Rules(
        verify_limit=settings.verify_limit,
        auto_verify_budget=settings.auto_verify_budget,
        require_lease_token=settings.require_lease_token,
        allow_simulation=settings.allow_simulation,
    )
    service = GovernanceService(core.store, core.clock, rules)
    signals = core.signals
    listen(signals, "governance.ready", service.waiting)
    signals.subscribe("governance.gate", lambda _: service.sweep.pump.signal())
    service.on_gate = lambda: signals.tell("governance.gate")
    stats = GovernanceStats(core.store)
    figures = GovernanceFigureLoop(stats, core.clock)
    core.metrics.on_scrape(figures.collect)
    anchors = AuditAnchors(core.store, core.clock, core.membership.instance_id)
    core.dead_letters.add(make_letter_section(service))
    core.retention.add_walk(
        "governance jobs", core.settings.store.retention_us, _find_old_jobs, _remove_jobs
    )
    core.retention.add("audit", core.settings.store.audit_retention_us, purge_audit)
    endpoints = Governance(
        service, GovernanceExplainer(core.store, rules), AuditService(core.store), stats
    )
    loops = [
        Loop("governance-sweep", service.sweep.pump.run),
        Loop("governance-long-poll", service.waiting.watch),
        Loop("audit-anchors", anchors.pump.run),
        Loop("governance-figures", figures.pump.run),
    ]
    if settings.worker.enabled:
        worker = _make_worker(core, settings, rules)
        loops.append(Loop("governance-worker", worker.pump.run))
        if settings.worker.callable or settings.worker.webhook:
            loops.append(Loop("governance-asking", worker.asking.run))

    async def drain() -> None:
        service.waiting.close()

    return Surface(
        name="governance",
        events=KINDS,
        words=words_of("governance"),
        routes=endpoints.routes(),
        loops=tuple(loops),
        found=find_jobs,
        stats=stats.snapshot,
        drain=drain,
    )


def _find_old_jobs(tx: GovernanceTx, before: Instant, after: WalkPlace, limit: int) -> OldRows:
    return tx.governance.find_old(before, after, limit)


def _remove_jobs(tx: GovernanceTx, seqs: list[int]) -> int:
    return tx.governance.remove(seqs)


def _make_worker(
    core: CoreServices, settings: GovernanceSettings, rules: Rules
) -> GovernanceWorker:
    worker = settings.worker
    perform: Perform | None = None
    more: dict[str, Any] = {"perform_us": worker.timeout_us}
    if worker.callable:
        perform = by_callable = PerformByCallable(
            load_callable(worker.callable, "governance.worker.callable")
        )
        more["count_free"] = by_callable.count_free
    elif worker.webhook:
        callers: list[HttpCaller] = []
        egress = core.settings.egress
        policy = EgressPolicy(allow=egress.allow, deny=egress.deny)

        def find_caller() -> HttpCaller:
            if not callers:  # made on the loop, when it is first needed
                callers.append(HttpCaller(policy))
            return callers[0]

        perform = perform_by_webhook(worker.webhook, find_caller, core.clock, worker.timeout_us)
    return GovernanceWorker(core.store, core.clock, rules, worker.interval_us, perform, **more)


def _check_worker(settings: GovernanceSettings) -> None:
    """Raise SetupError for settings that cannot be meant, whether the worker is on or not."""
    worker = settings.worker
    if worker.callable and worker.webhook:
        raise SetupError(
            "governance.worker.webhook and governance.worker.callable are both set: one of them "
            "does the work, unset the other"
        )
    if worker.callable:
        load_callable(worker.callable, "governance.worker.callable")


def find_jobs(tx: GovernanceTx) -> dict[str, int]:
    """What lies in the store."""
    figures = tx.governance_figures.read()
    return {
        "governance jobs due": figures.due,
        "governance jobs running": figures.running,
        "governance dead letters": figures.dead_letters,
    }


class GovernanceFigureLoop:
    """Reads the figures now and then, for /metrics."""

    def __init__(self, stats: GovernanceStats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._latest: GovernanceMetrics | None = None
        self.pump = Pump("governance-figures", clock, self._step, FIGURES_EVERY)

    async def _step(self) -> Instant | None:
        began = self._clock.monotonic()
        self._latest = await self._stats.read()
        spent = self._clock.monotonic() - began
        return self._clock.now() + max(FIGURES_EVERY, spent * FIGURES_SHARE)

    def collect(self) -> Iterable[Any]:
        """Show what was read last."""
        latest = self._latest
        if latest is None:
            return []
        return [
            _gauge("jobs_due_count", "Governance jobs that are due.", latest.jobs_due_count),
            _gauge(
                "jobs_lag_seconds",
                "How long the oldest due governance job has been due.",
                latest.jobs_lag_seconds,
            ),
            _gauge(
                "job_success_rate",
                "Governance jobs that succeeded among those that ended in the last hour.",
                latest.job_success_rate,
            ),
            _gauge(
                "job_retry_rate",
                "Attempts at governance jobs that failed, of those made in the last hour.",
                latest.job_retry_rate,
            ),
            _gauge(
                "dead_letter_count",
                "Governance jobs that are dead letters.",
                latest.dead_letter_count,
            ),
        ]


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float("nan") if value is None else value)


async def open_audit(settings: Settings) -> tuple[AuditService, Store]:
    """The audit of a store, beside a running server if there is one. Close the store afterwards."""
    store = await open_store(settings.store.url, SystemClock(), migrate=False, serve=False)
    return AuditService(store), store
