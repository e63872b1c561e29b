"""The audit as people read it: lists, verification, export."""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from ksana.base.errors import NotFoundError
from ksana.domain.governance.audit import (
    ANCHOR_CHAIN,
    GENESIS,
    Anchor,
    AuditFinding,
    AuditRow,
    ChainCheck,
    ChainHead,
    Expectations,
    anchor_body,
    body_of,
    note_purge,
    verify_anchors,
    verify_purges,
)
from ksana.ports.governance.tables import AuditFilter, AuditPlace, GovernanceTx
from ksana.ports.pages import PageRows
from ksana.ports.store import Store
from ksana.service.governance.portions import AuditPortions, list_chain

PAGE: Final = 2000

_encode = msgspec.json.Encoder().encode


class AuditPage(msgspec.Struct, frozen=True):
    """Some entries, newest first, and the place to go on before."""

    entries: list[AuditRow]
    next_before: AuditPlace | None


class AuditReport(msgspec.Struct, frozen=True):
    """What a verification found."""

    entries: int
    chains: int
    anchors: int
    last_anchor: str | None
    """The hash of the newest anchor: noted elsewhere, it proves later that nothing was cut off."""
    findings: list[AuditFinding]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


class AuditService:
    """Lists, verifies and exports the audit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.portions = AuditPortions(store)

    async def list_entries(
        self, wanted: AuditFilter, before: AuditPlace | None, limit: int
    ) -> AuditPage:
        """One page. Entries of a job are found by its object: alone, the id of a job that is not
        kept any more finds nothing."""
        rows = await self._store.read_list(_list_entries, wanted, before, limit + 1)
        last = rows[:limit][-1] if len(rows) > limit or rows.is_cut else None
        place = None if last is None else (last.timestamp, last.chain, last.seq)
        return AuditPage(entries=rows[:limit], next_before=place)

    async def get_entry(self, entry_id: str) -> AuditRow:
        """One entry."""
        found: AuditRow | None = await self._store.read(lambda tx: tx.audit.find(entry_id))
        if found is None:
            raise NotFoundError(f"there is no audit entry {entry_id[:64]}")
        return found

    async def verify(self, known_anchor: str | None = None) -> AuditReport:
        """Check every entry of every chain, the chains' ends and the anchors. A server may write
        beside it: what comes after its start is not looked at. With `known_anchor` that anchor,
        noted earlier, must be there."""
        # Anchors first: a chain goes on while we read, and must not seem shorter than an anchor.
        anchors = [anchor async for anchor in self._anchors()]
        heads = await self._read_heads()
        expected = Expectations(anchors)
        findings: list[AuditFinding] = []
        purged: dict[int, tuple[int, str]] = {}
        count = 0
        for head in _with_anchored(heads, expected):
            found, number = await self._verify_chain(head, expected, purged)
            if found and await self._has_moved(head):  # retention removed entries meanwhile
                return await self.verify(known_anchor)
            findings += found
            count += number
        findings += verify_anchors(anchors, purged.get(ANCHOR_CHAIN, (0, GENESIS)))
        findings += verify_purges(heads, purged)
        if known_anchor is not None and known_anchor not in {anchor.hash for anchor in anchors}:
            findings.append(
                AuditFinding(
                    kind="CUT",
                    chain=ANCHOR_CHAIN,
                    seq=0,
                    message=f"the anchor {known_anchor[:64]} is not there",
                )
            )
        return AuditReport(
            entries=count,
            chains=len(heads),
            anchors=len(anchors),
            last_anchor=anchors[-1].hash if anchors else None,
            findings=findings,
        )

    async def _verify_chain(
        self, head: ChainHead, expected: Expectations, purged: dict[int, tuple[int, str]]
    ) -> tuple[list[AuditFinding], int]:
        check = ChainCheck(head, expected.of(head.chain))
        findings: list[AuditFinding] = []
        async for rows in self._pages(head):
            findings += check.feed(rows)
            for row in rows:
                note_purge(row, purged)
        findings += check.finish()
        return findings, check.count

    async def _has_moved(self, head: ChainHead) -> bool:
        heads = await self._read_heads()
        return any(one.chain == head.chain and one.base_seq != head.base_seq for one in heads)

    async def _read_heads(self) -> list[ChainHead]:
        heads: list[ChainHead] = await self._store.read(lambda tx: tx.audit.list_heads())
        return heads

    async def export(self) -> AsyncIterator[bytes]:
        """The audit as JSON lines: a line for each chain, its entries, then the anchors. `body` is
        the very text that was hashed."""
        for head in await self._read_heads():
            yield _line({"kind": "chain", **msgspec.structs.asdict(head)})
            async for rows in self._pages(head):
                for row in rows:
                    yield _entry_line(row)
        async for anchor in self._anchors():
            yield _anchor_line(anchor)

    async def _pages(self, head: ChainHead) -> AsyncIterator[list[AuditRow]]:
        after = head.base_seq
        while True:
            rows: PageRows[AuditRow] = await self._store.read(
                list_chain, head.chain, after, head.seq, PAGE
            )
            if rows:
                yield rows
                after = rows[-1].seq
            if len(rows) < PAGE and not rows.is_cut:
                return

    async def _anchors(self) -> AsyncIterator[Anchor]:
        after = 0
        while True:
            page: list[Anchor] = await self._store.read(_list_anchors, after, PAGE)
            for anchor in page:
                yield anchor
            if len(page) < PAGE:
                return
            after = page[-1].number


def _list_entries(
    tx: GovernanceTx, wanted: AuditFilter, before: AuditPlace | None, limit: int
) -> PageRows[AuditRow]:
    if wanted.job_id is not None and wanted.object_id is None:
        job = tx.governance.find(wanted.job_id)
        if job is None:
            return PageRows()
        wanted = msgspec.structs.replace(
            wanted, object_type=job.object_type, object_id=job.object_id
        )
    return tx.audit.list_entries(wanted, before, limit)


def _list_anchors(tx: Any, after: int, limit: int) -> list[Anchor]:
    anchors: list[Anchor] = tx.audit.list_anchors(after, limit)
    return anchors


def _with_anchored(heads: list[ChainHead], expected: Expectations) -> list[ChainHead]:
    """The chains, and those that only anchors know of any more."""
    known = {head.chain for head in heads}
    lost = [
        ChainHead(chain=chain, seq=0, hash=GENESIS) for chain in sorted(expected.chains - known)
    ]
    return [*heads, *lost]


def _line(value: dict[str, Any]) -> bytes:
    return _encode(value) + b"\n"


def _entry_line(row: AuditRow) -> bytes:
    body = body_of(row.id, row, row.timestamp).decode()
    return _line(
        {
            "kind": "entry",
            "chain": row.chain,
            "seq": row.seq,
            "prev_hash": row.prev_hash,
            "hash": row.hash,
            "body": body,
        }
    )


def _anchor_line(anchor: Anchor) -> bytes:
    return _line(
        {
            "kind": "anchor",
            "number": anchor.number,
            "prev_hash": anchor.prev_hash,
            "hash": anchor.hash,
            "body": anchor_body(anchor.number, anchor.at, anchor.heads).decode(),
        }
    )
