"""The list of sessions in Redis: one sorted set for each instance, all scores 0, so that its
members stand in the order of their bytes. A member is the session's id, a zero byte, the record.
Ids have no zero byte in them, so members stand in the order of ids."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.instant import Micros
from ksana.domain.nodes.records import SessionRecord
from ksana.fabric.redis.instances import to_ms
from ksana.fabric.redis.keys import RedisKeys
from ksana.fabric.redis.link import Command
from ksana.fabric.redis.router import Router

_TOGETHER: Final = 250
"""Sessions written in one batch; more are sent in parts, so that others have their turn."""

_END: Final = b"\x00\xff"
"""Behind an id: greater than its member, whatever the record; less than the next id's."""

_record = msgspec.json.Decoder(SessionRecord)


class RedisSessions:
    """See `ports.nodes.sessions.SessionList`."""

    def __init__(self, router: Router, keys: RedisKeys, instance_id: str) -> None:
        self._router = router
        self._keys = keys
        self._mine = keys.sessions(instance_id)

    async def write(
        self, sessions: Sequence[SessionRecord], gone: Sequence[str], ttl_us: Micros
    ) -> None:
        # What is written anew may stand there with another record: struck first, like the gone.
        struck = [*gone, *(one.session_id for one in sessions)]
        commands: list[Command] = [
            ("ZREMRANGEBYLEX", self._mine, b"[%b\x00" % at, b"(%b%b" % (at, _END))
            for at in (session_id.encode() for session_id in struck)
        ]
        await self._run([*commands, *self._additions(sessions)], ttl_us)

    async def write_all(self, sessions: Sequence[SessionRecord], ttl_us: Micros) -> None:
        await self._run([("DEL", self._mine), *self._additions(sessions)], ttl_us)

    async def renew(self, ttl_us: Micros) -> int:
        key = self._mine
        counted, _ = await self._router.run_in_order(
            [
                self._router.step("session", key, "ZCARD", key),
                self._router.step("session", key, "PEXPIRE", key, to_ms(ttl_us)),
            ]
        )
        return int(counted)

    async def read(
        self, instance_ids: Sequence[str], after: str, limit: int
    ) -> list[SessionRecord]:
        least = b"(%b%b" % (after.encode(), _END) if after else b"-"
        names = [self._keys.sessions(instance_id) for instance_id in instance_ids]
        commands = [(name, ("ZRANGEBYLEX", name, least, b"+", "LIMIT", 0, limit)) for name in names]
        pages = await self._router.run_many("session", commands)
        found = [
            _record.decode(member.partition(b"\x00")[2]) for members in pages for member in members
        ]
        found.sort(key=lambda one: one.session_id)
        return found[:limit]

    def _additions(self, sessions: Sequence[SessionRecord]) -> list[Command]:
        members = [
            b"%b\x00%b" % (one.session_id.encode(), msgspec.json.encode(one)) for one in sessions
        ]
        return [("ZADD", self._mine, 0, member) for member in members]

    async def _run(self, commands: Sequence[Command], ttl_us: Micros) -> None:
        key = self._mine
        for at in range(0, len(commands), _TOGETHER):
            steps = [
                self._router.step("session", key, *words) for words in commands[at : at + _TOGETHER]
            ]
            await self._router.run_in_order(
                [*steps, self._router.step("session", key, "PEXPIRE", key, to_ms(ttl_us))]
            )
