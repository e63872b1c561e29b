"""The choice of a fabric by its URL. Redis is an extra: its driver is imported only where it is
asked for."""

from ksana.base.clock import Clock
from ksana.base.errors import SetupError
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import InboxSettings


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
