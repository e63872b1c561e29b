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
    keep_ended_us: Annotated[
        Micros,
        About(
            duration(MINUTE, 30 * DAY),
            "How long an ended node job can be looked at. In memory the last 20,000 at most.",
        ),
    ] = HOUR
    max_jobs: Annotated[
        int,
        About(
            integer(1, 10_000_000),
            "Node jobs of one instance that have not ended, those in line included.",
        ),
    ] = 50_000
    max_job_bytes: Annotated[
        int, About(integer(1024, 1 << 40), "Bytes of their payloads together.")
    ] = 512 * 1024 * 1024
    max_sockets: Annotated[
        int, About(integer(1, 1_000_000), "Nodes and sessions connected to one instance.")
    ] = 20_000
    max_sockets_per_key: Annotated[
        int, About(integer(1, 1_000_000), "Those of them that came with one API key.")
    ] = 10_000
    frame_rate: Annotated[
        int,
        About(
            integer(100, 1_000_000),
            "Frames of one socket that are read in a second; more are read later.",
        ),
    ] = 20_000
    max_queued_bytes: Annotated[
        int,
        About(
            integer(2 << 20, 1 << 30),
            "Bytes that may wait for a socket before it is closed (4008).",
        ),
    ] = 4 << 20
    max_queued_bytes_all: Annotated[
        int,
        About(integer(2 << 20, 1 << 40), "Bytes that may wait for all sockets of an instance."),
    ] = 256 << 20
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
