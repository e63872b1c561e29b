"""The choice of a fabric by its URL. Redis is an extra: its driver is imported only where it is
asked for."""

import contextlib
from typing import TYPE_CHECKING, Final

from ksana.base.clock import Clock
from ksana.base.errors import SetupError
from ksana.base.ids import new_uid
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import InboxSettings

if TYPE_CHECKING:
    from ksana.store.sql.core.postgres_signals import PostgresSignals

KEYS_CHANGED: Final = "keys.changed"
"""The signal that API keys were made or revoked."""


def make_fabric(
    url: str, instance_id: str, clock: Clock, key_prefix: str, inbox: InboxSettings
) -> Fabric:
    """Make the fabric that the coordination URL names. Nothing connects yet."""
    if url == "memory":
        return MemoryFabric(instance_id, clock, inbox)
    try:
        from ksana.fabric.redis.fabric import RedisFabric
    except ImportError:
        raise SetupError("coordination by Redis needs its driver: install ksana[redis]") from None
    return RedisFabric(url, instance_id, clock, key_prefix, inbox)


def make_store_signals(url: str, instance_id: str) -> "PostgresSignals | None":
    """Signals by the store itself, for instances without Redis; None where it has no such way."""
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme not in ("postgresql", "postgres"):
        return None
    from ksana.store.sql.core.postgres_signals import PostgresSignals

    return PostgresSignals(url, instance_id)


async def tell_instances(url: str, key_prefix: str, clock: Clock, name: str) -> None:
    """Tell the running instances something from a process that ends right after. A hint: if it
    cannot be told, they find out by themselves."""
    if url == "memory":
        return
    with contextlib.suppress(SetupError):
        fabric = make_fabric(url, f"cli-{new_uid()[:8]}", clock, key_prefix, InboxSettings())
        try:
            fabric.signals.publish(name)
            await fabric.signals.flush()
        finally:
            await fabric.close()
