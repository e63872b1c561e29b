"""Inboxes in memory."""

import re
from collections.abc import Sequence
from itertools import islice

from ksana.base.instant import Micros
from ksana.fabric.memory.hub import Entry, Letter, Mailbox, MemoryHub
from ksana.ports.inbox import (
    DeadLetter,
    InboxEntry,
    InboxSettings,
    InboxState,
    LetterHead,
    SendResult,
)

_KIND = re.compile(rb'"kind":"([A-Za-z_]+)"')


class MemoryInbox:
    """See `ports.fabric.Inbox`."""

    def __init__(self, hub: MemoryHub, instance_id: str, settings: InboxSettings) -> None:
        self._hub = hub
        self._instance_id = instance_id
        self._settings = settings
        self._full_at = settings.maxlen * 9 // 10

    async def open(self) -> None:
        self._own()

    async def send(self, instance_id: str, body: bytes) -> SendResult:
        mailbox = self._hub.mailboxes.get(instance_id)
        if mailbox is None:
            return "gone"
        if len(mailbox.entries) >= self._full_at:
            return "full"
        put(self._hub, mailbox, body)
        return "sent"

    async def read(
        self, count: int, block_us: Micros, done: Sequence[str] = ()
    ) -> list[InboxEntry]:
        await self.done(done)
        clock = self._hub.clock
        until = clock.now() + block_us
        while True:
            mailbox = self._own()
            fresh = [entry for entry in mailbox.entries.values() if not entry.deliveries][:count]
            if fresh:
                return self._hand_out(fresh)
            mailbox.arrived.clear()
            if not await clock.wait(mailbox.arrived, until):
                return []

    async def done(self, ids: Sequence[str], instance_id: str | None = None) -> int:
        mailbox = self._hub.mailboxes.get(instance_id or self._instance_id)
        if mailbox is None:
            return 0
        return sum(1 for entry_id in ids if mailbox.entries.pop(entry_id, None) is not None)

    async def reclaim(self, min_idle_us: Micros, count: int) -> list[InboxEntry]:
        idle_since = self._hub.clock.monotonic() - min_idle_us
        found = [
            entry
            for entry in self._own().entries.values()
            if entry.deliveries and entry.handed_mono <= idle_since
        ]
        return self._hand_out(found[:count])

    async def bury(self) -> int:
        settings = self._settings
        if not settings.dlq_enabled:
            return 0
        idle_since = self._hub.clock.monotonic() - settings.dlq_min_idle_us
        return self._bury(self._own(), self._instance_id, idle_since)

    async def begin_drain(self, instance_id: str, ttl_us: Micros) -> bool:
        holder = self._hub.drainers.get(instance_id)
        if holder is not None and holder != self._instance_id:
            return False
        self._hub.drainers.put(instance_id, self._instance_id, ttl_us)
        return True

    async def drain(self, instance_id: str, count: int) -> list[InboxEntry] | None:
        if self._hub.drainers.get(instance_id) != self._instance_id:
            return None
        mailbox = self._hub.mailboxes.get(instance_id)
        if mailbox is None:
            return []
        self._bury(mailbox, instance_id, self._hub.clock.monotonic())
        found = sorted(mailbox.entries.values(), key=lambda entry: not entry.deliveries)
        return self._hand_out(found[:count])

    async def end_drain(self, instance_id: str) -> bool:
        if self._hub.drainers.get(instance_id) != self._instance_id:
            return False
        mailbox = self._hub.mailboxes.get(instance_id)
        if mailbox is not None:
            if mailbox.entries:
                return False
            self._own().letters.update(mailbox.letters)
            del self._hub.mailboxes[instance_id]
        self._hub.drainers.pop(instance_id)
        return True

    async def measure(self) -> InboxState:
        mailbox = self._own()
        pending = sum(1 for entry in mailbox.entries.values() if entry.deliveries)
        return InboxState(
            length=len(mailbox.entries), pending=pending, dead_letters=len(mailbox.letters)
        )

    def _bury(self, mailbox: Mailbox, instance_id: str, idle_since: Micros) -> int:
        settings = self._settings
        dead = [
            entry
            for entry in mailbox.entries.values()
            if entry.deliveries >= settings.dlq_max_deliveries and entry.handed_mono <= idle_since
        ][: settings.dlq_scan_count]
        for entry in dead:
            del mailbox.entries[entry.id]
            letter_id = str(self._hub.next_number())
            mailbox.letters[letter_id] = Letter(
                id=letter_id,
                instance_id=instance_id,
                body=entry.body,
                deliveries=entry.deliveries,
                moved_at=self._hub.clock.now(),
            )
            while len(mailbox.letters) > settings.dlq_maxlen:
                del mailbox.letters[next(iter(mailbox.letters))]
        return len(dead)

    def _own(self) -> Mailbox:
        return self._hub.mailboxes.setdefault(self._instance_id, Mailbox())

    def _hand_out(self, entries: list[Entry]) -> list[InboxEntry]:
        now = self._hub.clock.monotonic()
        for entry in entries:
            entry.deliveries += 1
            entry.handed_mono = now
        return [
            InboxEntry(id=entry.id, body=entry.body, deliveries=entry.deliveries)
            for entry in entries
        ]


class MemoryDeadLetters:
    """See `ports.fabric.DeadLetters`."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    async def list_letters(self, instance_id: str, after: str, limit: int) -> list[DeadLetter]:
        mailbox = self._hub.mailboxes.get(instance_id)
        if mailbox is None:
            return []
        floor = int(after.partition("-")[0] or "0")  # a place may have the form that Redis gives
        found = [letter for letter in mailbox.letters.values() if int(letter.id) > floor]
        return [
            DeadLetter(
                id=letter.id,
                instance_id=letter.instance_id,
                body=letter.body,
                deliveries=letter.deliveries,
                moved_at=letter.moved_at,
            )
            for letter in found[:limit]
        ]

    async def list_heads(self, instance_id: str, before: str, limit: int) -> list[LetterHead]:
        mailbox = self._hub.mailboxes.get(instance_id)
        letters = reversed([] if mailbox is None else list(mailbox.letters.values()))
        older = (one for one in letters if not before or int(one.id) < int(before))
        return [
            LetterHead(
                id=letter.id,
                kind=_find_kind(letter.body),
                deliveries=letter.deliveries,
                moved_at=letter.moved_at,
            )
            for letter in islice(older, limit)
        ]

    async def replay(self, instance_id: str, letter_id: str) -> bool:
        mailbox = self._hub.mailboxes.get(instance_id)
        letter = None if mailbox is None else mailbox.letters.pop(letter_id, None)
        if mailbox is None or letter is None:
            return False
        put(self._hub, mailbox, letter.body)
        return True

    async def delete(self, instance_id: str, letter_id: str) -> bool:
        mailbox = self._hub.mailboxes.get(instance_id)
        return mailbox is not None and mailbox.letters.pop(letter_id, None) is not None


def _find_kind(body: bytes) -> str:
    found = _KIND.search(body[:64])
    return "" if found is None else found[1].decode()


def put(hub: MemoryHub, mailbox: Mailbox, body: bytes) -> None:
    """Append a message and wake its reader."""
    entry_id = str(hub.next_number())
    mailbox.entries[entry_id] = Entry(id=entry_id, body=body)
    mailbox.arrived.set()
