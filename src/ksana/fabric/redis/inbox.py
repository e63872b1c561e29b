"""Inbox streams in Redis (N9)."""

from collections.abc import Sequence
from typing import Any, Final

from ksana.base.instant import MILLISECOND, Instant, Micros
from ksana.fabric.redis import scripts
from ksana.fabric.redis.instances import to_ms
from ksana.fabric.redis.keys import RedisKeys
from ksana.fabric.redis.link import Word
from ksana.fabric.redis.reader import BlockingReader, read_entries
from ksana.fabric.redis.router import Router, Step
from ksana.ports.inbox import (
    DeadLetter,
    InboxEntry,
    InboxSettings,
    InboxState,
    LetterHead,
    SendResult,
)

_SEND: Final[dict[int, SendResult]] = {1: "sent", 0: "full", -1: "gone"}
_IDS_AT_ONCE: Final = 500
"""A script takes its arguments on a stack that ends at some 8,000."""

_LETTERS_AT_ONCE: Final = 100


class RedisInbox:
    """See `ports.fabric.Inbox`."""

    def __init__(
        self, router: Router, keys: RedisKeys, instance_id: str, settings: InboxSettings
    ) -> None:
        self._router = router
        self._keys = keys
        self._instance_id = instance_id
        self._settings = settings
        self._full_at = settings.maxlen * 9 // 10
        self._own = keys.inbox(instance_id)
        self._reader = BlockingReader(router, self._own, settings.group, instance_id)
        self._open = scripts.load("inbox_open")
        self._send = scripts.load("inbox_send")
        self._done = scripts.load("inbox_done")
        self._bury = scripts.load("inbox_bury")
        self._reclaim = scripts.load("inbox_reclaim")
        self._drain = scripts.load("inbox_drain")
        self._delete = scripts.load("inbox_delete")
        self._claim = scripts.load("owner_claim")

    async def open(self) -> None:
        await self._router.call("inbox_open", self._open, (self._own,), (self._settings.group,))

    async def send(self, instance_id: str, body: bytes) -> SendResult:
        (answer,) = await self._router.run_in_order([self.send_step(instance_id, body)])
        return self.read_sent(answer)

    def send_step(self, instance_id: str, body: bytes) -> Step:
        """A message as a step, to go along with others."""
        arguments = (self._full_at, self._settings.maxlen, body)
        key = self._keys.inbox(instance_id)
        return self._router.script_step("inbox_send", self._send, (key,), arguments)

    def read_sent(self, answer: int) -> SendResult:
        """What came of that step."""
        if answer != 1:
            self._router.count("inbox_send", "refused")
        return _SEND[answer]

    async def read(
        self, count: int, block_us: Micros, done: Sequence[str] = ()
    ) -> list[InboxEntry]:
        found = await self._reader.read(count, to_ms(block_us), done)
        if found is None:  # lost: wiped, or drained while we seemed dead
            await self.open()
            return []
        return found

    async def done(self, ids: Sequence[str], instance_id: str | None = None) -> int:
        key = self._own if instance_id is None else self._keys.inbox(instance_id)
        count = 0
        for start in range(0, len(ids), _IDS_AT_ONCE):
            part = ids[start : start + _IDS_AT_ONCE]
            count += await self._router.call(
                "inbox_done", self._done, (key,), (self._settings.group, *part)
            )
        if instance_id is None:
            self._reader.forget(ids)
        return count

    async def reclaim(self, min_idle_us: Micros, count: int) -> list[InboxEntry]:
        arguments = (self._settings.group, self._instance_id, max(0, min_idle_us // 1000), count)
        found = await self._router.call("inbox_reclaim", self._reclaim, (self._own,), arguments)
        return [
            InboxEntry(id=entry[0].decode(), body=entry[1][1], deliveries=int(entry[2]))
            for entry in found
            if entry[1]
        ]

    async def bury(self) -> int:
        if not self._settings.dlq_enabled:
            return 0
        return await self._bury_in(self._instance_id, self._settings.dlq_min_idle_us)

    async def begin_drain(self, instance_id: str, ttl_us: Micros) -> bool:
        key = self._keys.drainer(instance_id)
        holder: bytes = await self._router.call(
            "inbox_drain", self._claim, (key,), (self._instance_id, to_ms(ttl_us))
        )
        return holder.decode() == self._instance_id

    async def drain(self, instance_id: str, count: int) -> list[InboxEntry] | None:
        if self._settings.dlq_enabled:
            await self._bury_in(instance_id, 0)
        touched = (self._keys.inbox(instance_id), self._keys.drainer(instance_id))
        arguments = (self._instance_id, self._settings.group, count)
        found = await self._router.call("inbox_drain", self._drain, touched, arguments)
        return None if found is None else read_entries(found)

    async def end_drain(self, instance_id: str) -> bool:
        await self._move_letters(instance_id)
        keys = self._keys
        touched = (keys.inbox(instance_id), keys.drainer(instance_id), keys.dlq(instance_id))
        answer = await self._router.call("inbox_drain", self._delete, touched, (self._instance_id,))
        return bool(answer)

    async def measure(self) -> InboxState:
        dlq = self._keys.dlq(self._instance_id)
        group = self._settings.group
        length, letters = await self._router.run_many(
            "inbox_measure", [(self._own, ("XLEN", self._own)), (dlq, ("XLEN", dlq))]
        )
        pending = 0
        if length:
            summary = await self._router.run(
                "inbox_measure", self._own, "XPENDING", self._own, group
            )
            pending = int(summary[0])
        return InboxState(length=int(length), pending=pending, dead_letters=int(letters))

    async def close(self) -> None:
        """Close the reader's connection."""
        await self._reader.close()

    async def _bury_in(self, instance_id: str, min_idle_us: Micros) -> int:
        settings = self._settings
        arguments: tuple[Word, ...] = (
            settings.group,
            self._instance_id,
            min_idle_us // MILLISECOND,
            settings.dlq_max_deliveries,
            settings.dlq_scan_count,
            settings.dlq_maxlen,
            instance_id,
        )
        touched = (self._keys.inbox(instance_id), self._keys.dlq(instance_id))
        return int(await self._router.call("dlq_move", self._bury, touched, arguments))

    async def _move_letters(self, instance_id: str) -> None:
        """Take a dead instance's dead letters over. One may be doubled by a crash in between."""
        theirs, ours = self._keys.dlq(instance_id), self._keys.dlq(self._instance_id)
        while True:
            found = await self._router.run(
                "dlq_move", theirs, "XRANGE", theirs, "-", "+", "COUNT", _LETTERS_AT_ONCE
            )
            if not found:
                return
            limit = self._settings.dlq_maxlen
            for letter_id, fields in found:
                await self._router.run(
                    "dlq_move", ours, "XADD", ours, "MAXLEN", "~", limit, "*", *fields
                )
                await self._router.run("dlq_move", theirs, "XDEL", theirs, letter_id)


class RedisDeadLetters:
    """See `ports.fabric.DeadLetters`."""

    def __init__(self, router: Router, keys: RedisKeys, settings: InboxSettings) -> None:
        self._router = router
        self._keys = keys
        self._group = settings.group
        self._heads = scripts.load("inbox_heads")
        self._replay = scripts.load("inbox_replay")

    async def list_letters(self, instance_id: str, after: str, limit: int) -> list[DeadLetter]:
        key = self._keys.dlq(instance_id)
        start = f"({after}" if after else "-"
        found = await self._router.run("dlq", key, "XRANGE", key, start, "+", "COUNT", limit)
        return [_read_letter(entry) for entry in found]

    async def list_heads(self, instance_id: str, before: str, limit: int) -> list[LetterHead]:
        touched = (self._keys.dlq(instance_id),)
        start = f"({before}" if before else "+"
        found = await self._router.call("dlq", self._heads, touched, (start, limit))
        return [
            LetterHead(
                id=letter_id.decode(),
                kind=kind.decode(),
                deliveries=int(deliveries),
                moved_at=int(moved_ms) * MILLISECOND,
            )
            for letter_id, kind, deliveries, moved_ms in found
        ]

    async def replay(self, instance_id: str, letter_id: str) -> bool:
        touched = (self._keys.inbox(instance_id), self._keys.dlq(instance_id))
        arguments = (letter_id, self._group)
        return bool(await self._router.call("dlq", self._replay, touched, arguments))

    async def delete(self, instance_id: str, letter_id: str) -> bool:
        key = self._keys.dlq(instance_id)
        return bool(await self._router.run("dlq", key, "XDEL", key, letter_id))


def _read_letter(entry: Any) -> DeadLetter:
    letter_id, words = entry
    fields = dict(zip(words[::2], words[1::2], strict=True))
    moved_at: Instant = int(fields.get(b"moved_ms", b"0")) * MILLISECOND
    return DeadLetter(
        id=letter_id.decode(),
        instance_id=fields.get(b"instance", b"").decode(),
        body=fields.get(b"m", b""),
        deliveries=int(fields.get(b"deliveries", b"0")),
        moved_at=moved_at,
    )
