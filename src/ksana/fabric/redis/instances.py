"""Presence of instances and owners of sockets in Redis."""

from collections.abc import Sequence

import msgspec

from ksana.base.instant import MILLISECOND, Micros
from ksana.domain.nodes.records import InstanceInfo, OwnerKind
from ksana.fabric.redis import scripts
from ksana.fabric.redis.keys import RedisKeys
from ksana.fabric.redis.router import Router

_info = msgspec.json.Decoder(InstanceInfo)


def to_ms(span_us: Micros) -> int:
    """A time to live as Redis takes it: whole milliseconds, at least one."""
    return max(1, span_us // MILLISECOND)


class RedisPresence:
    """See `ports.fabric.Presence`."""

    def __init__(self, router: Router, keys: RedisKeys, instance_id: str) -> None:
        self._router = router
        self._keys = keys
        self._instance_id = instance_id
        self._touch = scripts.load("touch_members")
        self._forget = scripts.load("presence_forget")

    async def renew(self, info: InstanceInfo, ttl_us: Micros) -> None:
        key = self._keys.presence(self._instance_id)
        text = msgspec.json.encode(info)
        # Listed first: an instance that is present and not listed would never be found dead.
        await self._router.call(
            "presence", self._touch, (self._keys.instances,), (self._instance_id,)
        )
        await self._router.run("presence", key, "SET", key, text, "PX", to_ms(ttl_us))

    async def withdraw(self) -> None:
        key = self._keys.presence(self._instance_id)
        await self._router.run("presence", key, "DEL", key)

    async def list_living(self) -> list[InstanceInfo]:
        return [_info.decode(text) for _, _, text in await self._list() if text is not None]

    async def list_dead(self) -> list[str]:
        return [instance_id for instance_id, _, text in await self._list() if text is None]

    async def forget(self, instance_id: str) -> bool:
        listed = self._keys.instances
        score = await self._router.run("presence", listed, "ZSCORE", listed, instance_id)
        key = self._keys.presence(instance_id)
        if await self._router.run("presence", key, "EXISTS", key):
            self._router.count("presence", "refused")
            return False
        is_gone = await self._router.call(
            "presence", self._forget, (listed,), (instance_id, score or "0")
        )
        return bool(is_gone)

    async def _list(self) -> list[tuple[str, bytes, bytes | None]]:
        listed = self._keys.instances
        found = await self._router.run("presence", listed, "ZRANGE", listed, 0, -1, "WITHSCORES")
        ids = [member.decode() for member in found[::2]]
        names = [self._keys.presence(instance_id) for instance_id in ids]
        texts = await self._router.run_many("presence", [(name, ("GET", name)) for name in names])
        return list(zip(ids, found[1::2], texts, strict=True))


class RedisOwners:
    """See `ports.fabric.Owners`."""

    def __init__(self, router: Router, keys: RedisKeys, instance_id: str) -> None:
        self._router = router
        self._keys = keys
        self._instance_id = instance_id
        self._claim = scripts.load("owner_claim")
        self._replace = scripts.load("owner_replace")
        self._drop = scripts.load("owner_drop")

    async def claim(self, kind: OwnerKind, owned_id: str, ttl_us: Micros) -> str:
        key = self._keys.owner(kind, owned_id)
        owner: bytes = await self._router.call(
            "owner", self._claim, (key,), (self._instance_id, to_ms(ttl_us))
        )
        return owner.decode()

    async def replace_if(self, kind: OwnerKind, owned_id: str, former: str, ttl_us: Micros) -> bool:
        key = self._keys.owner(kind, owned_id)
        arguments = (self._instance_id, former, to_ms(ttl_us))
        return bool(await self._router.call("owner", self._replace, (key,), arguments))

    async def renew(self, kind: OwnerKind, owned_ids: Sequence[str], ttl_us: Micros) -> list[bool]:
        arguments = (self._instance_id, to_ms(ttl_us))
        calls = [((self._keys.owner(kind, owned_id),), arguments) for owned_id in owned_ids]
        owners = await self._router.call_many("owner", self._claim, calls)
        return [owner.decode() == self._instance_id for owner in owners]

    async def drop_if_ours(self, kind: OwnerKind, owned_id: str) -> bool:
        key = self._keys.owner(kind, owned_id)
        return bool(await self._router.call("owner", self._drop, (key,), (self._instance_id,)))

    async def find(self, kind: OwnerKind, owned_id: str) -> str | None:
        key = self._keys.owner(kind, owned_id)
        owner = await self._router.run("owner", key, "GET", key)
        return None if owner is None else owner.decode()
