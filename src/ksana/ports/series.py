"""Counts over time, for any surface: `tx.series`. A metric's name is its surface's, as
`queue.done`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ksana.base.instant import Instant, Micros
from ksana.ports.store import Tx


class SeriesTable(Protocol):
    """What was counted, by the time it happened. A count is kept to the minute, and read over
    stretches of any number of minutes at a cost that follows the stretches, not the minutes."""

    def add(self, metric: str, count: int = 1) -> None:
        """Count something in this minute. For a gauge: by how much it went up or down."""
        ...

    def observe(self, metric: str, spans: Mapping[int, int], total: float = 0.0) -> None:
        """Add counts by bucket (see `domain.histogram`) to the minute's histogram. `total` is the
        sum of the spans in seconds, for who listens to commits."""
        ...

    def sum_stretches(
        self, metric: str, since: Instant, until: Instant, width_us: Micros
    ) -> dict[Instant, int]:
        """A metric summed over stretches of whole minutes, by their starts; those with nothing in
        them may be missing. `since` is the start of one. A histogram's sum is the histogram, packed
        as `domain.histogram` says."""
        ...

    def sum_since(self, metrics: Sequence[str], since: Instant) -> dict[str, int]:
        """The sums of the minutes of some metrics that began since then."""
        ...

    def pack_minutes(self, metrics: Sequence[str], limit: int) -> int:
        """Move up to `limit` counts of these metrics' minutes that are over to where they are read
        faster; answer how many. Nothing read changes by it. Instances may do it at once, and a
        minute may be counted in again afterwards."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` hours that ended before; answer how many."""
        ...


class SeriesTx(Tx, Protocol):
    """A transaction with counts over time."""

    @property
    def series(self) -> SeriesTable: ...
