"""Anchors of the audit: now and then the ends of all chains are written down, in a chain of their
own, and logged. One instance at a time does it; a chain cut short afterwards is found by it."""

from typing import Any, Final

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, Instant, Micros
from ksana.domain.governance.audit import (
    ANCHORED,
    GENESIS,
    PURGED,
    SYSTEM,
    Anchor,
    AuditEntry,
    ChainHead,
    anchor_body,
    encode_heads,
    hash_of,
)
from ksana.engine.core.pump import Pump
from ksana.ports.governance.tables import GovernanceTx
from ksana.ports.store import Store

EVERY: Final[Micros] = 5 * MINUTE
LOCK: Final = "audit-anchor"
LOCK_US: Final[Micros] = MINUTE

_encode = msgspec.json.Encoder().encode


def write_anchor(tx: GovernanceTx, owner: str) -> Anchor | None:
    """Write an anchor if anything but anchors was written since the last one, and this instance has
    the lock."""
    if not tx.locks.take(LOCK, owner, LOCK_US):
        return None
    heads = tx.audit.list_heads()
    last = tx.audit.latest_anchor()
    if not _has_news(heads, last):
        return None
    number, prev = (1, GENESIS) if last is None else (last.number + 1, last.hash)
    text = encode_heads(heads)
    anchor = Anchor(
        number=number,
        at=tx.now,
        heads=text,
        prev_hash=prev,
        hash=hash_of(prev, anchor_body(number, tx.now, text)),
    )
    if not tx.audit.add_anchor(anchor):
        return None
    tx.audit.append(
        AuditEntry(
            event_type=ANCHORED,
            actor=SYSTEM,
            after=_encode({"anchor": number, "hash": anchor.hash}).decode(),
        )
    )
    return anchor


def _has_news(heads: list[ChainHead], last: Anchor | None) -> bool:
    written = sum(head.seq for head in heads)
    if last is None:
        return written > 0
    # The anchor itself is one entry.
    return written > sum(seq for _, seq, _ in last.list_heads()) + 1


def purge_audit(tx: Any, before: Instant, limit: int) -> int:
    """Remove what is older than the audit is kept, at the beginning of its chains. An entry of its
    own tells of each removal, so that it can be told from one by other hands."""
    removals = tx.audit.purge(before, limit)
    for removal in removals:
        tx.audit.append(
            AuditEntry(
                event_type=PURGED,
                actor=SYSTEM,
                after=_encode(
                    {"chain": removal.chain, "seq": removal.seq, "hash": removal.hash}
                ).decode(),
                reason="RETENTION",
            )
        )
    return sum(removal.count for removal in removals)


class AuditAnchors:
    """The loop, on the pump."""

    def __init__(self, store: Store, clock: Clock, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self.pump = Pump("audit-anchors", clock, self._step, EVERY)

    async def _step(self) -> Instant | None:
        anchor = await self._store.transact(write_anchor, self._owner)
        if anchor is not None:
            # A witness outside of the store: who alters all of it cannot alter this line.
            log.info("audit anchored", anchor=anchor.number, hash=anchor.hash)
        return self._clock.now() + EVERY
