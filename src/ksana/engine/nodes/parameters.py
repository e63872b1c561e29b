"""The numbers of the nodes surface, as the engine needs them."""

import msgspec

from ksana.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Micros
from ksana.domain.nodes.attempts import AttemptLimits
from ksana.domain.nodes.storm import StormLimits
from ksana.ports.inbox import InboxSettings


class NodeParameters(msgspec.Struct, frozen=True):
    """N1–N15 in numbers."""

    owner_ttl_us: Micros = 45 * SECOND
    presence_ttl_us: Micros = 45 * SECOND
    refresh_us: Micros = SECOND
    """How often the view of all nodes is read and our own nodes are written."""
    remove_stale_us: Micros = 600 * SECOND
    heartbeat_us: Micros = 15 * SECOND
    dead_after_us: Micros = 45 * SECOND
    probe_us: Micros = 2 * SECOND
    """How long a live node has to answer when another comes with its id."""
    stream_block_us: Micros = SECOND
    stream_count: int = 64
    dlq_scan_us: Micros = 5 * SECOND
    progress_us: Micros = 50 * MILLISECOND
    """Acknowledgements and starts are told after so long, unless the result is there by then: a job
    that takes a moment then costs no message for them."""
    binding_ttl_us: Micros = HOUR
    keep_us: Micros = HOUR
    """How long the record of a job is kept after its end."""
    reconnect_us: Micros = MINUTE
    """How long results wait for a session that is not connected."""
    max_jobs: int = 50_000
    """Jobs that one instance is in charge of, those that wait in line included."""
    max_job_bytes: int = 512 * 1024 * 1024
    """Bytes of their payloads."""
    inbox: InboxSettings = InboxSettings()
    limits: AttemptLimits = AttemptLimits()
    storm: StormLimits = StormLimits()
