"""The audit in SQL: entries are hashed onto a chain as they come and written together.

A transaction takes the first chain that is free (`FOR UPDATE SKIP LOCKED`) and has it to itself
until it ends, so the end it reads is the end it continues. On SQLite there is one writer and so one
chain; elsewhere there are as many as there ever were writers at once.
"""

from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.governance.audit import (
    ANCHOR_CHAIN,
    Anchor,
    AuditEntry,
    AuditRow,
    ChainHead,
    body_of,
    entry_id,
    hash_of,
    place_of,
)
from ksana.ports.governance.tables import AuditFilter, AuditPlace, Removal
from ksana.ports.pages import MAX_PAGE_BYTES, PageRows
from ksana.store.sql.core.session import Row, Session

_COLUMNS: Final = (
    "place",
    "id",
    "event_type",
    "actor",
    "object_type",
    "object_id",
    "before_json",
    "after_json",
    "reason",
    "evidence_refs",
    "job_id",
    "correlation_id",
    "decision_trace_id",
    "ts",
    "prev_hash",
    "hash",
)
_SEQ_BITS: Final = 44
_SEQ_MASK: Final = (1 << _SEQ_BITS) - 1


def _place(chain: int, seq: int) -> int:
    """Where an entry lies in the table: the chains one after the other."""
    return chain << _SEQ_BITS | seq


def _row(row: Row) -> AuditRow:
    return AuditRow(row[0] >> _SEQ_BITS, row[0] & _SEQ_MASK, *row[1:])


class SqlAuditLog:
    """`audit_events`, `audit_chains`, `audit_anchors`."""

    flush_order = 100

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now
        self._rows: list[Row] = []
        self.has_gathered = False
        self._chain: int | None = None
        self._written_seq = 0
        self._seq = 0
        self._hash = ""

    @property
    def chain(self) -> int:
        """The chain that this transaction has for itself."""
        if self._chain is None:
            row = self._session.one("audit.take_chain")
            if row is None:  # more writers at once than there are chains
                row = self._session.one("audit.wait_for_chain", chain=self._now % 32)
            if row is None:
                raise RuntimeError("the table audit_chains has lost its rows")
            self._chain, self._seq, self._hash = row
            self._written_seq = self._seq
        return self._chain

    def append(self, entry: AuditEntry) -> str:
        chain = self.chain
        self._session.wrote = self.has_gathered = True
        seq, prev, now = self._seq + 1, self._hash, self._now
        name = entry_id(chain, seq)
        digest = hash_of(prev, body_of(name, entry, now))
        self._rows.append(
            (
                _place(chain, seq),
                name,
                entry.event_type,
                entry.actor,
                entry.object_type,
                entry.object_id,
                entry.before,
                entry.after,
                entry.reason,
                entry.evidence_refs,
                entry.job_id,
                entry.correlation_id,
                entry.decision_trace_id,
                now,
                prev,
                digest,
            )
        )
        self._seq, self._hash = seq, digest
        return name

    def flush(self) -> None:
        """Write what was gathered, and the new end of the chain."""
        rows, self._rows, self.has_gathered = self._rows, [], False
        self._session.run_rows("audit.append", _COLUMNS, rows)
        is_set = self._session.run(
            "audit.set_head",
            chain=self._chain,
            seq=self._seq,
            hash=self._hash,
            old_seq=self._written_seq,
        )
        if not is_set:
            raise RuntimeError(f"chain {self._chain} of the audit moved under its writer")
        self._written_seq = self._seq

    def forget(self) -> None:
        """Drop what was gathered. The chain's end is read anew: it may have been rolled back."""
        self._rows, self.has_gathered = [], False
        self._chain = None

    def find(self, entry_id: str) -> AuditRow | None:
        place = place_of(entry_id)
        if place is None:
            return None
        row = self._session.one("audit.find_entry", place=_place(*place))
        return None if row is None else _row(row)

    def list_entries(
        self, wanted: AuditFilter, before: AuditPlace | None, limit: int
    ) -> PageRows[AuditRow]:
        at, chain, seq = before or (None, 0, 0)
        filters = {**msgspec.structs.asdict(wanted), "before": at}
        rows = self._session.paged(
            "audit.list_entries",
            filters,
            MAX_PAGE_BYTES,
            limit=limit,
            before_place=_place(chain, seq),
        )
        entries = PageRows(_row(row) for row in rows)
        entries.is_cut = rows.is_cut
        return entries

    def list_chain(self, chain: int, after: int, until: int, limit: int) -> PageRows[AuditRow]:
        rows = self._session.paged(
            "audit.list_chain",
            {},
            MAX_PAGE_BYTES,
            after=_place(chain, after),
            until=_place(chain, until),
            limit=limit,
        )
        entries = PageRows(_row(row) for row in rows)
        entries.is_cut = rows.is_cut
        return entries

    def list_heads(self) -> list[ChainHead]:
        return [ChainHead(*row) for row in self._session.all("audit.list_heads")]

    def list_anchors(self, after: int, limit: int) -> list[Anchor]:
        return [
            Anchor(*row)
            for row in self._session.all("audit.list_anchors", after=after, limit=limit)
        ]

    def latest_anchor(self) -> Anchor | None:
        row = self._session.one("audit.latest_anchor")
        return None if row is None else Anchor(*row)

    def add_anchor(self, anchor: Anchor) -> bool:
        return (
            self._session.run(
                "audit.add_anchor",
                number=anchor.number,
                at=anchor.at,
                heads_json=anchor.heads,
                prev_hash=anchor.prev_hash,
                hash=anchor.hash,
            )
            == 1
        )

    def mark(self) -> int:
        row = self._session.one("audit.mark")
        return int(row[0]) if row is not None and row[0] is not None else 0

    def purge(self, before: Instant, limit: int) -> list[Removal]:
        removals: list[Removal] = []
        for head in self.list_heads():
            left = limit - sum(removal.count for removal in removals)
            if left <= 0:
                break
            removal = self._purge_chain(head, before, left)
            if removal is not None:
                removals.append(removal)
        anchors = self._session.all("audit.list_old_anchors", before=before, limit=limit)
        if anchors:
            number, digest = anchors[-1]
            count = self._session.run("audit.delete_anchors", until=number)
            removals.append(Removal(chain=ANCHOR_CHAIN, seq=number, hash=digest, count=count))
        return removals

    def _purge_chain(self, head: ChainHead, before: Instant, limit: int) -> Removal | None:
        after, until = _place(head.chain, head.base_seq), _place(head.chain, head.seq)
        rows = self._session.all("audit.oldest_entries", after=after, until=until, limit=limit)
        old = 0
        while old < len(rows) and rows[old][1] < before:
            old += 1
        if not old:
            return None
        last, _, digest = rows[old - 1]
        seq = last & _SEQ_MASK
        is_moved = self._session.run(
            "audit.set_base",
            chain=head.chain,
            base_seq=seq,
            base_hash=digest,
            old_base=head.base_seq,
        )
        if not is_moved:  # another instance was faster
            return None
        count = self._session.run("audit.delete_entries", after=after, until=last)
        return Removal(chain=head.chain, seq=seq, hash=digest, count=count)
