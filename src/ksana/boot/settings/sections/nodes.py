"""The settings of nodes."""

from typing import Annotated, Any, Final

import msgspec

from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Micros
from ksana.boot.settings.values import SWITCH, About, duration, integer, text


class NodeSettings(msgspec.Struct, frozen=True):
    """Nodes, their inboxes and their dead letters."""

    owner_ttl_us: Annotated[
        Micros, About(duration(SECOND, HOUR), "Life of an owner key without renewal.")
    ] = 45 * SECOND
    presence_ttl_us: Annotated[
        Micros, About(duration(SECOND, HOUR), "Life of a presence key without renewal.")
    ] = 45 * SECOND
    refresh_interval_us: Annotated[
        Micros,
        About(duration(100 * MILLISECOND, MINUTE), "How often the view of all nodes is refreshed."),
    ] = SECOND
    remove_stale_after_us: Annotated[
        Micros, About(duration(SECOND, 30 * DAY), "When a node that is gone leaves the list.")
    ] = 600 * SECOND
    stream_group: Annotated[
        str,
        About(
            text(pattern=r"[A-Za-z0-9._:-]{1,64}", allowed="1 to 64 letters, digits or ._:-"),
            "The consumer group on the inbox streams.",
        ),
    ] = "scheduler"
    stream_block_us: Annotated[
        Micros, About(duration(10 * MILLISECOND, MINUTE), "How long one read of the inbox waits.")
    ] = SECOND
    stream_count: Annotated[int, About(integer(1, 10_000), "Messages taken in one read.")] = 64
    stream_maxlen: Annotated[
        int, About(integer(10, 100_000_000), "Length of an inbox at most.")
    ] = 10_000
    dlq_enabled: Annotated[
        bool, About(SWITCH, "Move messages that fail again and again to the dead letters.")
    ] = True
    dlq_maxlen: Annotated[
        int, About(integer(10, 100_000_000), "Length of the dead letter stream at most.")
    ] = 10_000
    dlq_max_deliveries: Annotated[
        int, About(integer(1, 1000), "Deliveries before a message is moved.")
    ] = 10
    dlq_min_idle_us: Annotated[
        Micros, About(duration(SECOND, DAY), "How long it must have been left alone.")
    ] = MINUTE
    dlq_scan_interval_us: Annotated[
        Micros, About(duration(100 * MILLISECOND, HOUR), "How often they are looked for.")
    ] = 5 * SECOND
    dlq_scan_count: Annotated[int, About(integer(1, 10_000), "Messages looked at in one go.")] = 100


SECTIONS: Final[dict[str, type[Any]]] = {
    "nodes": NodeSettings,
}
