"""Messages between instances: the part of the fabric that is a mailbox. See `ports.fabric` for what
holds for all of it."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from ksana.base.instant import Instant, Micros

SendResult = Literal["sent", "full", "gone"]
"""full: more than nine tenths of the inbox are taken, nothing was written. gone: there is no such
inbox, because its instance never opened it, or it was drained after its death."""


class Post(msgspec.Struct, frozen=True):
    """A message that travels with something else, and whose inbox it is for."""

    instance_id: str
    body: bytes


class InboxEntry(msgspec.Struct, frozen=True):
    """A message as it is read. `id` is good for `done` only."""

    id: str
    body: bytes
    deliveries: int = 1
    """How often it has been handed out, this time included."""


class InboxState(msgspec.Struct, frozen=True):
    """How full an inbox is."""

    length: int
    """Unread and pending together."""
    pending: int
    """Handed out and not done."""
    dead_letters: int


class InboxSettings(msgspec.Struct, frozen=True):
    """The numbers of N9."""

    group: str = "scheduler"
    maxlen: int = 10_000
    dlq_enabled: bool = True
    dlq_maxlen: int = 10_000
    dlq_max_deliveries: int = 10
    dlq_min_idle_us: Micros = 60_000_000
    dlq_scan_count: int = 100


class Inbox(Protocol):
    """Messages to an instance, at least once each (N9). In order per sender as long as nothing is
    handed out again. An entry stays until it is done or dead."""

    async def open(self) -> None:
        """Make our own inbox, if it is not there: only then can anybody send to us."""
        ...

    async def send(self, instance_id: str, body: bytes) -> SendResult:
        """Put a message into the inbox of an instance. Nothing unread is ever trimmed to make room:
        above nine tenths of `maxlen` it is refused instead."""
        ...

    async def read(
        self, count: int, block_us: Micros, done: Sequence[str] = ()
    ) -> list[InboxEntry]:
        """Take up to `count` messages of ours, waiting for the first up to `block_us`. Messages
        that were handed to us and lost on the way (a broken connection) come again first. An inbox
        that was lost is opened again. One reader at a time. What is `done` is removed before
        anything is waited for, on the same way: if that fails it is removed with a later read."""
        ...

    async def done(self, ids: Sequence[str], instance_id: str | None = None) -> int:
        """These are handled: remove them, whoever they were handed to. Answers how many were there.
        `instance_id` names the inbox of a dead instance that we drain."""
        ...

    async def reclaim(self, min_idle_us: Micros, count: int) -> list[InboxEntry]:
        """Take our messages again that were handed out and then left alone for so long."""
        ...

    async def bury(self) -> int:
        """Move messages that were handed out `dlq_max_deliveries` times and left alone for
        `dlq_min_idle_us` to the dead letters; answers how many. Nothing happens unless
        `dlq_enabled`."""
        ...

    async def begin_drain(self, instance_id: str, ttl_us: Micros) -> bool:
        """Become the one that drains the inbox of a dead instance, or stay it. False: another one
        drains it. Whoever drains repeats this to keep the right; it runs out after `ttl_us`."""
        ...

    async def drain(self, instance_id: str, count: int) -> list[InboxEntry] | None:
        """Take messages of an inbox that we drain, pending ones first, then unread. What was taken
        and is not done comes again, so call it when the last ones are done; one that has been
        handed out `dlq_max_deliveries` times goes to the dead letters instead. None: we are not the
        one that drains it any more."""
        ...

    async def end_drain(self, instance_id: str) -> bool:
        """Delete the inbox, its dead letters having been moved to ours. False if there are messages
        left, or we do not drain it any more; nothing changed then."""
        ...

    async def measure(self) -> InboxState:
        """How full our inbox is."""
        ...


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that failed again and again."""

    id: str
    instance_id: str
    """Whose inbox it was in when it was moved."""
    body: bytes
    deliveries: int
    moved_at: Instant


class LetterHead(msgspec.Struct, frozen=True):
    """A dead letter without its message."""

    id: str
    kind: str
    """Of which kind the message is; empty if it is none of ours."""
    deliveries: int
    moved_at: Instant


class DeadLetters(Protocol):
    """Messages that failed for good, by the instance in whose keeping they are (N9, N14)."""

    async def list_letters(self, instance_id: str, after: str, limit: int) -> list[DeadLetter]:
        """The oldest first, after the given id (empty: from the start)."""
        ...

    async def list_heads(self, instance_id: str, before: str, limit: int) -> list[LetterHead]:
        """The newest first, before the given id (empty: from the end). Messages, which may be
        large, stay where they are."""
        ...

    async def replay(self, instance_id: str, letter_id: str) -> bool:
        """Put it back into the inbox of that instance, as if it were new. False if it is not
        there."""
        ...

    async def delete(self, instance_id: str, letter_id: str) -> bool:
        """Remove it. False if it is not there."""
        ...
