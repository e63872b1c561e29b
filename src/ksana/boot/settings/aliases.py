"""Key names of earlier designs that a configuration file may still use, and what they mean here.

`scheduler.phase2…` comes from the node design, `mysql…`, `scheduler…`, `executor…` from the cron
design. A key whose purpose is gone is accepted with a notice, so that an old file still starts.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ksana.boot.settings.values import SWITCH, url_of_go_dsn


class Alias(msgspec.Struct, frozen=True):
    """An old key: the setting it stands for and how its value is turned into ours."""

    target: str
    convert: Callable[[Any], Any] = lambda value: value


def _seconds(value: Any) -> Any:
    return value


def _milliseconds(value: Any) -> Any:
    return f"{value}ms" if isinstance(value, int) and not isinstance(value, bool) else value


_PHASE2: Final = "scheduler.phase2."

ALIASES: Final[dict[str, Alias]] = {
    "mysql.dsn": Alias("store.url", url_of_go_dsn),
    "scheduler.poll_interval": Alias("tasks.poll_interval"),
    "scheduler.batch_limit": Alias("tasks.batch_limit"),
    "executor.worker_pool_size": Alias("tasks.workers"),
    "executor.request_timeout": Alias("tasks.request_timeout"),
    "executor.default_retry.max_retries": Alias("tasks.max_retries"),
    _PHASE2 + "instance_id": Alias("coordination.instance_id"),
    _PHASE2 + "redis.key_prefix": Alias("coordination.key_prefix"),
    _PHASE2 + "owner_ttl_seconds": Alias("nodes.owner_ttl", _seconds),
    _PHASE2 + "stream_group": Alias("nodes.stream_group"),
    _PHASE2 + "stream_block_ms": Alias("nodes.stream_block", _milliseconds),
    _PHASE2 + "stream_count": Alias("nodes.stream_count"),
    _PHASE2 + "stream_maxlen": Alias("nodes.stream_maxlen"),
    _PHASE2 + "dlq_enabled": Alias("nodes.dlq_enabled"),
    _PHASE2 + "dlq_maxlen": Alias("nodes.dlq_maxlen"),
    _PHASE2 + "dlq_max_deliveries": Alias("nodes.dlq_max_deliveries"),
    _PHASE2 + "dlq_min_idle_ms": Alias("nodes.dlq_min_idle", _milliseconds),
    _PHASE2 + "dlq_scan_interval_ms": Alias("nodes.dlq_scan_interval", _milliseconds),
    _PHASE2 + "dlq_scan_count": Alias("nodes.dlq_scan_count"),
    _PHASE2 + "node_snapshot.presence_ttl_seconds": Alias("nodes.presence_ttl", _seconds),
    _PHASE2 + "node_snapshot.refresh_interval_ms": Alias("nodes.refresh_interval", _milliseconds),
    _PHASE2 + "node_snapshot.remove_stale_after_seconds": Alias(
        "nodes.remove_stale_after", _seconds
    ),
}

_NO_AHEAD: Final = "due tasks are read from the store when they are due"

WITHOUT_EFFECT: Final[dict[str, str]] = {
    "mysql.max_open_conns": "the store keeps a few connections of its own",
    "mysql.max_idle_conns": "the store keeps a few connections of its own",
    "mysql.conn_max_lifetime": "a lost connection is replaced when it is noticed",
    "scheduler.enable_seconds_field": "cron expressions may always have five fields or six",
    "scheduler.ahead_seconds": _NO_AHEAD,
    "tasks.ahead": _NO_AHEAD,
    _PHASE2 + "node_snapshot.enabled": "the view of all nodes is always kept",
}

REDIS_KEYS: Final = tuple(
    _PHASE2 + key for key in ("enabled", "redis.mode", "redis.url", "redis.cluster_urls")
)
"""Four keys that together say what `coordination.url` says."""


def coordination_url_of(keys: dict[str, Any]) -> str:
    """Make the coordination URL of the node design's four keys. Off unless `enabled` says
    otherwise."""
    enabled, mode, url, urls = (keys.get(key) for key in REDIS_KEYS)
    if not SWITCH.read(enabled if enabled is not None else False):
        return "memory"
    if mode not in {None, "single", "cluster"}:
        raise ValueError(f"{REDIS_KEYS[1]} must be single or cluster")
    if mode == "cluster":
        if isinstance(urls, str):
            urls = urls.split(",")
        if (
            not isinstance(urls, list)
            or not urls
            or not all(isinstance(entry, str) for entry in urls)
        ):
            raise ValueError(
                f"{REDIS_KEYS[3]} must be a list of addresses when the mode is cluster"
            )
        scheme = "rediss" if urls[0].startswith("rediss://") else "redis"
        return f"{scheme}+cluster://" + ",".join(
            entry.strip().partition("://")[2] or entry.strip() for entry in urls
        )
    if not isinstance(url, str) or not url:
        raise ValueError(f"{REDIS_KEYS[2]} must say where Redis is")
    return url
