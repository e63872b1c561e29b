"""What commits counted and recorded: counts for /metrics, and for the log the events that an
operator should see.

Counting here, and not where something is decided, counts every end once, whoever made it: a call, a
callback, a deadline, a lease, a user. A transaction that was rolled back or run again is not in it.
Each instance counts its own commits, so the sum over all instances is the truth.
"""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from ksana.base import log
from ksana.boot.logs import is_written
from ksana.domain.events import EventKind
from ksana.domain.histogram import BUCKETS, bucket_seconds
from ksana.ports.events import EventRow
from ksana.ports.store import Committed, Store

_ALERT: Final = '"alert":true'
_ID_MEMBERS: Final = {
    "TASK": "task_id",
    "RUN": "run_id",
    "JOB": "job_id",
    "LEASE": "lease_id",
    "GOV_JOB": "gov_job_id",
    "OBJECT": "object_id",
    "GATE": "gate",
    "NODE": "node_id",
    "SESSION": "session_id",
    "NODE_JOB": "node_job_id",
    "KEY": "key_id",
}


class CommitWatch:
    """Listens to the commits of this process."""

    def __init__(self) -> None:
        self._kinds: dict[str, EventKind] = {}
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}
        self._alerts: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, store: Store, kinds: Iterable[EventKind]) -> None:
        """Listen to a store, from the event loop on which lines are to be logged."""
        self._loop = asyncio.get_running_loop()
        self._kinds = {kind.name: kind for kind in kinds if kind.log or kind.may_alert}
        self._alerts = {name: 0 for name, kind in sorted(self._kinds.items()) if kind.may_alert}
        store.watch_commits(self._on_commit, frozenset(self._kinds))

    def count(self, metric: str) -> int:
        """How often something was counted, whatever the key."""
        with self._lock:
            return sum(count for (name, _), (count, _) in self._counts.items() if name == metric)

    def collect_alerts(self) -> Iterable[Any]:
        """The events that carried `"alert":true`."""
        family = CounterMetricFamily(
            "ksana_alert_events_total", "Events that should wake somebody.", labels=("event",)
        )
        with self._lock:
            for name, count in self._alerts.items():
                family.add_metric((name,), count)
        return [family]

    def histogram(self, metric: str, name: str, text: str) -> HistogramMetricFamily:
        """The spans that were counted of a metric, in buckets that double."""
        counts, total = [0] * BUCKETS, 0.0
        with self._lock:
            for (found, key), (count, seconds) in self._counts.items():
                if found == metric:
                    counts[int(key.partition(".")[0])] += count
                    total += seconds
        family = HistogramMetricFamily(name, text)
        family.add_metric((), _buckets(counts), total)
        return family

    # --- on a writer's thread ---

    def _on_commit(self, committed: Committed) -> None:
        if committed.counts:
            counts = self._counts
            with self._lock:
                for key, (count, total) in committed.counts.items():
                    before = counts.get(key, (0, 0.0))
                    counts[key] = before[0] + count, before[1] + total
        if committed.events:
            self._on_events(committed.events)

    def _on_events(self, events: Sequence[EventRow]) -> None:
        logged: list[EventRow] = []
        for row in events:
            name, data = row[3], row[4]
            if _ALERT in data and name in self._alerts:
                with self._lock:
                    self._alerts[name] += 1
            kind = self._kinds[name]
            if kind.is_logged(data) and is_written(kind.log):
                logged.append(row)
        if logged and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._log_events, logged)

    # --- on the event loop ---

    def _log_events(self, events: Sequence[EventRow]) -> None:
        for _, entity_type, entity_id, name, data in events:
            kind = self._kinds[name]
            write = log.warning if kind.log == "warning" else log.info
            write(kind.meaning.rstrip("."), **describe(entity_type, entity_id, name, data))


def describe(entity_type: str, entity_id: str, name: str, data: str) -> dict[str, Any]:
    """The members of an event's line. Its data is as the event has it; what went wrong is called
    `err` as in every line."""
    found: dict[str, Any] = msgspec.json.decode(data)
    members: dict[str, Any] = {"event_type": name, _ID_MEMBERS.get(entity_type, "id"): entity_id}
    if entity_type == "RUN":
        members["run_id"] = int(entity_id)
        members["status"] = name.removeprefix("RUN_")
    if "error" in found:
        members["err"] = found.pop("error")
    return {**found, **members}


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Counts at or below each bound, two of our buckets in each of these."""
    found: list[tuple[str, float]] = []
    below = 0
    for bucket, count in enumerate(counts):
        below += count
        if bucket % 2 == 0:
            found.append((str(round(bucket_seconds(bucket), 9)), below))
    return [*found, ("+Inf", below)]
