"""How runs ended over time, from counts written with the ends. Nothing here reads runs."""

from typing import Final

import msgspec

from ksana.base.instant import MINUTE, Instant, Micros
from ksana.domain.tasks.changes import METRIC_OF
from ksana.ports.store import Store, Tx

_SUCCEEDED: Final = (METRIC_OF["SUCCESS"], METRIC_OF["CALLBACK_SUCCESS"])
_FAILED: Final = tuple(METRIC_OF[end] for end in ("FAILED", "TIMEOUT", "FAILED_TIMEOUT"))


class RunSeries(msgspec.Struct, frozen=True):
    """Counts in equal spans; the last one holds now."""

    since: Instant
    width: Micros
    succeeded: list[int]
    failed: list[int]
    skipped: list[int]
    canceled: list[int]
    misfired: list[int]
    mean_sec: list[float | None]
    """How long successful attempts took."""


class RunSeriesService:
    """Reads the counts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, width: Micros, number: int) -> RunSeries:
        """The newest `number` spans. A span is whole minutes."""
        return await self._store.read_list(read_series, width, number)


def read_series(tx: Tx, width: Micros, number: int) -> RunSeries:
    """Sum minutes into spans, aligned to the clock."""
    last = tx.now - tx.now % width
    since = last - (number - 1) * width

    def add_up(metrics: tuple[str, ...]) -> tuple[list[int], list[float]]:
        counts, totals = [0] * number, [0.0] * number
        for metric in metrics:
            for at, count, total in tx.rollups.list_buckets(metric, "", since, last + width):
                counts[(at - since) // width] += count
                totals[(at - since) // width] += total
        return counts, totals

    assert width % MINUTE == 0
    succeeded, took = add_up(_SUCCEEDED)
    means = [total / count if count else None for count, total in zip(succeeded, took, strict=True)]
    return RunSeries(
        since,
        width,
        succeeded,
        add_up(_FAILED)[0],
        add_up((METRIC_OF["SKIPPED"],))[0],
        add_up((METRIC_OF["CANCELED"],))[0],
        add_up(("misfires",))[0],
        means,
    )
