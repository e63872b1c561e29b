"""The queue, plugged in: its service, its loops, its endpoints, its figures for /metrics."""

from collections.abc import Iterable
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ksana.api.queue.routes import Queue
from ksana.boot.commit_watch import CommitWatch
from ksana.boot.settings.sections.queue import CapacitySettings, QueueSettings
from ksana.boot.surface import CoreServices, Surface, listen, words_of
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.events import KINDS
from ksana.engine.core.supervisor import Loop
from ksana.engine.queue.chores import QueueChores, add_queue_rows
from ksana.engine.queue.job_writer import TALLIES
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue.dead_letters import make_section as make_letter_section
from ksana.service.queue.explain import QueueExplainer
from ksana.service.queue.handover import QueueHandover
from ksana.service.queue.service import QueueService
from ksana.service.queue.stats import QueueStats, Snapshot

ORDER: Final = 20


def make_surface(core: CoreServices) -> Surface:
    """Build the surface; nothing waits here."""
    settings = core.settings
    capacity = settings.section(CapacitySettings)
    queue = settings.section(QueueSettings)
    limits = Limits(capacity.total, capacity.shares, queue.claim_ttl_us, queue.classes)
    service = QueueService(core.store, core.clock, limits)
    listen(core.signals, "queue.ready", service.poll)
    core.offers["queue"] = QueueHandover(service)
    stats = QueueStats(core.store, limits)
    figures = Figures(stats, core.commits)
    core.metrics.on_scrape(figures.collect)
    chores = QueueChores(core.store, core.clock, core.membership.instance_id, figures.sample)
    core.dead_letters.add(make_letter_section(service))
    add_queue_rows(core.retention, settings.store.retention_us)

    async def drain() -> None:
        service.poll.close()

    return Surface(
        name="queue",
        events=KINDS,
        words=words_of("queue"),
        routes=Queue(service, stats, QueueExplainer(core.store, limits, service.classes)).routes(),
        loops=(
            Loop("queue-leasing", service.leasing.pump.run),
            Loop("queue-long-poll", service.poll.watch),
            Loop("queue-chores", chores.pump.run),
        ),
        found=find_jobs,
        stats=stats.snapshot,
        drain=drain,
    )


def find_jobs(tx: QueueTx) -> dict[str, int]:
    """What lies in the queue, from its gauges."""
    gauges = tx.gauges.read()
    return {"jobs queued": gauges.queued, "jobs running": gauges.running}


class Figures:
    """The latest snapshot, and what this instance committed, for /metrics."""

    def __init__(self, stats: QueueStats, commits: CommitWatch) -> None:
        self._stats = stats
        self._commits = commits
        self._latest: Snapshot | None = None
        self._ready = 0

    async def sample(self) -> None:
        """Read the snapshot."""
        self._ready = await self._stats.count_ready()
        self._latest = await self._stats.snapshot()

    def collect(self) -> Iterable[Any]:
        """Show both."""
        return [*self._collect_counts(), *self._collect_snapshot()]

    def _collect_counts(self) -> Iterable[Any]:
        commits = self._commits
        ended = CounterMetricFamily(
            "ksana_queue_jobs_ended_total", "Jobs that ended, by state.", labels=("state",)
        )
        for state, metric in sorted(TALLIES.items()):
            ended.add_metric((state,), commits.count(metric))
        submitted, expired = commits.count("queue.submitted"), commits.count("queue.expired")
        return [
            CounterMetricFamily(
                "ksana_queue_jobs_submitted_total", "Jobs submitted.", value=submitted
            ),
            ended,
            CounterMetricFamily(
                "ksana_queue_leases_expired_total", "Leases that ran out.", value=expired
            ),
            commits.histogram(
                "queue.wait", "ksana_queue_wait_seconds", "From when a job was due to its start."
            ),
            commits.histogram(
                "queue.run", "ksana_queue_run_seconds", "From the start of a job to its end."
            ),
        ]

    def _collect_snapshot(self) -> Iterable[Any]:
        latest = self._latest
        if latest is None:
            return []
        units = GaugeMetricFamily(
            "ksana_queue_capacity_units", "Units of capacity.", labels=("kind",)
        )
        for kind, value in latest.capacity.items():
            units.add_metric((kind,), value)
        jobs = GaugeMetricFamily("ksana_queue_jobs", "Jobs that have not ended.", labels=("state",))
        for state in ("queued", "running"):
            jobs.add_metric((state,), latest.jobs[state])
        return [
            units,
            jobs,
            GaugeMetricFamily(
                "ksana_queue_jobs_ready",
                "Jobs that a worker could claim now, counted up to 10,000.",
                value=self._ready,
            ),
            GaugeMetricFamily(
                "ksana_queue_leases_active", "Active leases.", value=latest.leases["active"]
            ),
        ]
