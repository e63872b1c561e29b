"""The audit verified in portions, for callers that cannot wait for all of it: each portion costs
about the same however long the audit is, and what it left open goes with the cursor."""

import asyncio
from typing import Final

import msgspec

from ksana.domain.governance.audit import (
    ANCHOR_CHAIN,
    GENESIS,
    Anchor,
    AuditFinding,
    AuditRow,
    ChainCheck,
    ChainHead,
    Purged,
    entry_id,
    note_purge,
    verify_anchored,
    verify_anchors,
    verify_purges,
)
from ksana.ports.governance.tables import GovernanceTx
from ksana.ports.pages import PageRows
from ksana.ports.store import Store

PORTION: Final = 5_000
"""Entries of one portion."""

PAGE: Final = 250
"""Entries read and hashed at once: some milliseconds, between which others have their turn."""

ANCHORS: Final = 50
"""Anchors of one portion. Each names up to 32 entries, which are looked up."""


class AuditCursor(msgspec.Struct, frozen=True):
    """Where a verification goes on: after this entry, or after this anchor."""

    mark: int
    """Changes when retention removes something."""
    chain: int
    seq: int
    hash: str
    purged: Purged


class AuditPortion(msgspec.Struct, frozen=True):
    """What one portion found."""

    entries: int
    anchors: int
    findings: list[AuditFinding]
    next: AuditCursor | None
    is_restart: bool = False
    """Retention removed entries meanwhile: `next` is the beginning."""


class AuditPortions:
    """Verifies the audit, a portion at a time; one at a time, so that many callers take no more of
    the store than one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = asyncio.Lock()

    async def verify(self, cursor: AuditCursor | None) -> AuditPortion:
        """Check the next portion: entries chain by chain, then the anchors. What is written
        meanwhile is checked too where it comes in time. Where retention removed entries and so
        something seems wrong, it begins again."""
        async with self._turn:
            mark = await self._store.read(_read_mark)
            start = AuditCursor(mark, 0, 0, GENESIS, {})
            at = start if cursor is None else cursor
            check = self._check_entries if at.chain != ANCHOR_CHAIN else self._check_anchors
            portion = await check(at)
            if portion.findings:
                now = await self._store.read(_read_mark)
                if now != at.mark:
                    again = msgspec.structs.replace(start, mark=now)
                    return AuditPortion(0, 0, [], again, is_restart=True)
            return portion

    async def _check_entries(self, at: AuditCursor) -> AuditPortion:
        heads: list[ChainHead] = await self._store.read(lambda tx: tx.audit.list_heads())
        purged, findings, count = dict(at.purged), list[AuditFinding](), 0
        for head in heads:
            if head.chain < at.chain:
                continue
            begin = head
            if head.chain == at.chain and head.base_seq < at.seq <= head.seq:
                begin = msgspec.structs.replace(head, base_seq=at.seq, base_hash=at.hash)
            check = ChainCheck(begin)
            while True:
                rows = await self._store.read_list(
                    list_chain, head.chain, check.seq, head.seq, min(PAGE, PORTION - count)
                )
                findings += check.feed(rows)
                for row in rows:
                    note_purge(row, purged)
                count += len(rows)
                if not rows or rows[-1].seq >= head.seq:
                    findings += check.finish()
                    break
                if count >= PORTION or rows.is_cut:
                    place = AuditCursor(at.mark, head.chain, check.seq, check.hash, purged)
                    return AuditPortion(count, 0, findings, place)
            if count >= PORTION:
                place = AuditCursor(at.mark, head.chain + 1, 0, GENESIS, purged)
                return AuditPortion(count, 0, findings, place)
        number, digest = purged.get(ANCHOR_CHAIN, (0, GENESIS))
        place = AuditCursor(at.mark, ANCHOR_CHAIN, number, digest, purged)
        return AuditPortion(count, 0, findings, place)

    async def _check_anchors(self, at: AuditCursor) -> AuditPortion:
        # Anchors first: a chain goes on while we read, and must not seem shorter than an anchor.
        anchors: list[Anchor] = await self._store.read(
            lambda tx: tx.audit.list_anchors(at.seq, ANCHORS)
        )
        findings = list(verify_anchors(anchors, (at.seq, at.hash)))
        findings += await self._store.read_list(_check_anchored, anchors)
        if len(anchors) == ANCHORS:
            last = anchors[-1]
            place = AuditCursor(at.mark, ANCHOR_CHAIN, last.number, last.hash, at.purged)
            return AuditPortion(0, len(anchors), findings, place)
        heads: list[ChainHead] = await self._store.read(lambda tx: tx.audit.list_heads())
        findings += verify_purges(heads, at.purged)
        return AuditPortion(0, len(anchors), findings, None)


def _read_mark(tx: GovernanceTx) -> int:
    """Grows with every removal, of entries and of anchors."""
    first = tx.audit.list_anchors(0, 1)
    return sum(head.base_seq for head in tx.audit.list_heads()) + sum(one.number for one in first)


def list_chain(
    tx: GovernanceTx, chain: int, after: int, until: int, limit: int
) -> PageRows[AuditRow]:
    """Entries of a chain, in order."""
    return tx.audit.list_chain(chain, after, until, limit)


def _check_anchored(tx: GovernanceTx, anchors: list[Anchor]) -> list[AuditFinding]:
    """Hold what anchors say of entries against the entries, each once."""
    heads = {head.chain: head for head in tx.audit.list_heads()}
    findings: list[AuditFinding] = []
    seen: set[tuple[int, int, str]] = set()
    for anchor in anchors:
        for told in anchor.list_heads():
            if told in seen:
                continue
            seen.add(told)
            chain, seq, _ = told
            row = tx.audit.find(entry_id(chain, seq))
            head = heads.get(chain) or ChainHead(chain=chain, seq=0, hash=GENESIS)
            findings += verify_anchored(anchor.number, told, head, row)
    return findings
