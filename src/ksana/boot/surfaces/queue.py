"""The queue, plugged in: its service, its loops, its endpoints, its figures for /metrics."""

from collections.abc import Iterable
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily

from ksana.api.queue.routes import Queue
from ksana.boot.settings.sections.queue import CapacitySettings, QueueSettings
from ksana.boot.surface import CoreServices, Surface
from ksana.domain.queue.admission import Limits
from ksana.engine.core.supervisor import Loop
from ksana.engine.queue.chores import QueueChores, add_queue_rows
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
    claim_ttl_us = settings.section(QueueSettings).claim_ttl_us
    limits = Limits(capacity.total, capacity.shares, claim_ttl_us)
    service = QueueService(core.store, core.clock, limits)
    core.offers["queue"] = QueueHandover(service)
    stats = QueueStats(core.store, limits)
    figures = Figures(stats)
    core.metrics.on_scrape(figures.collect)
    chores = QueueChores(core.store, core.clock, core.membership.instance_id, figures.sample)
    core.dead_letters.add(make_letter_section(service))
    add_queue_rows(core.retention, settings.store.retention_us)

    async def drain() -> None:
        service.poll.close()

    return Surface(
        name="queue",
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
    """The latest snapshot, for /metrics."""

    def __init__(self, stats: QueueStats) -> None:
        self._stats = stats
        self._latest: Snapshot | None = None

    async def sample(self) -> None:
        """Read the snapshot."""
        self._latest = await self._stats.snapshot()

    def collect(self) -> Iterable[Any]:
        """Show it."""
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
                "ksana_queue_leases_active", "Active leases.", value=latest.leases["active"]
            ),
        ]
