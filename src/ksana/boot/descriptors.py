"""How the process's descriptors are shared out: what we need ourselves comes first, callers get
the rest. With none left no call could be made and no file opened, and all firing would stop."""

import contextlib
import sys
from typing import Final

import msgspec

from ksana.base import log
from ksana.boot.settings.sections.tasks import TaskSettings
from ksana.boot.settings.table import Settings

OWN_FILES: Final = 128
"""The database with its readers and side files, Redis, the log, the event loop, a command beside
us."""
LOOKUPS: Final = 1024
"""One socket for each name that is being looked up."""
KEPT_CALLS: Final = 256
"""Connections to targets kept for the next call, by each of two clients."""
LEAST_CONNECTIONS: Final = 16
FEW_CONNECTIONS: Final = 256
MANY: Final = 1 << 20


class DescriptorPlan(msgspec.Struct, frozen=True):
    """Who gets how many."""

    limit: int
    connections: int
    """Of callers, sockets included."""
    kept_calls: int
    """Connections to targets that each client keeps."""
    lookups: int = LOOKUPS
    """Names that are looked up at once."""


def plan_descriptors(limit: int, workers: int, most_connections: int) -> DescriptorPlan:
    """Share out `limit` descriptors between `workers` calls at once and the callers."""
    kept = max(KEPT_CALLS, workers)
    if limit < 16 * kept:
        kept = max(8, min(kept, limit // 16))
    lookups = min(LOOKUPS, limit // 8)
    reserve = OWN_FILES + lookups + min(workers, limit // 4) + 2 * kept
    connections = max(LEAST_CONNECTIONS, min(most_connections, limit - reserve))
    return DescriptorPlan(limit, connections, kept, lookups)


def raise_limit() -> int:
    """Take as many descriptors as the system lets us have; answer how many."""
    if sys.platform == "win32":
        return MANY  # sockets there are no descriptors
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY if hard == resource.RLIM_INFINITY else min(hard, MANY)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return MANY if soft == resource.RLIM_INFINITY else soft


def tell_if_few(plan: DescriptorPlan) -> None:
    """Warn where callers get less than a small service needs."""
    if plan.connections < FEW_CONNECTIONS:
        log.warning(
            "few connections can be open at a time: raise the descriptor limit (ulimit -n)",
            descriptors=plan.limit,
            connections=plan.connections,
        )


def plan_for(settings: Settings) -> DescriptorPlan:
    """Raise the limit as far as it goes, and plan with it; warn if that leaves few for callers."""
    workers, most = settings.section(TaskSettings).workers, settings.limits.total_connections
    plan = plan_descriptors(raise_limit(), workers, most)
    tell_if_few(plan)
    return plan
