"""The settings of the queue."""

from typing import Annotated, Any, Final

import msgspec

from ksana.base.instant import DAY, MINUTE, SECOND, Micros
from ksana.boot.settings.values import SHARES, About, duration, integer
from ksana.domain.queue.classes import MOST_CLASSES


class CapacitySettings(msgspec.Struct, frozen=True):
    """Units that queue jobs share."""

    total: Annotated[
        int, About(integer(1, 1_000_000_000), "Units that running queue jobs may hold together.")
    ] = 100
    shares: Annotated[
        tuple[tuple[str, int], ...], About(SHARES, "Most units that one addon may hold, by its id.")
    ] = ()


class QueueSettings(msgspec.Struct, frozen=True):
    """Claims, and classes of jobs."""

    claim_ttl_us: Annotated[
        Micros, About(duration(SECOND, DAY), "How long a claim lasts without a sign of its worker.")
    ] = MINUTE
    classes: Annotated[
        int,
        About(
            integer(1, 1_000_000),
            "Classes that unfinished queue jobs may have together: "
            "the same addon, type, cost and true constraints.",
        ),
    ] = MOST_CLASSES


SECTIONS: Final[dict[str, type[Any]]] = {
    "capacity": CapacitySettings,
    "queue": QueueSettings,
}
