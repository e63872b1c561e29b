"""An audit in memory: chains of entries, anchors, what retention removed, and what somebody laid a
hand on. It is the table that services read."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.domain.governance.audit import (
    ANCHOR_CHAIN,
    GENESIS,
    PURGED,
    Anchor,
    AuditEntry,
    AuditRow,
    ChainHead,
    anchor_body,
    body_of,
    encode_heads,
    entry_id,
    hash_of,
)
from ksana.ports.governance.tables import AuditFilter, AuditPlace
from ksana.ports.pages import PageRows

NOW: Instant = 1_770_000_000_000_000


class AuditBook:
    """`tx.audit`."""

    def __init__(self) -> None:
        self.rows: dict[int, list[AuditRow]] = {}
        self.heads: dict[int, ChainHead] = {}
        self.anchors: list[Anchor] = []
        self.most_rows = 1_000
        """A page has no more, whatever is asked: the bytes of its rows are many."""
        self.asked: list[tuple[Any, ...]] = []
        self.on_chain: list[Callable[[], None]] = []
        """What happens when rows of a chain are read, once each."""
        self._anchored = (0, GENESIS)

    # what happens to it
    def add(self, chain: int, number: int = 1, **members: Any) -> None:
        """Entries at the end of a chain."""
        for _ in range(number):
            head = self.heads.get(chain, ChainHead(chain=chain, seq=0, hash=GENESIS))
            seq = head.seq + 1
            given = {"event_type": "job.ack", "actor": "w1", "object_id": f"m{seq}", **members}
            entry = AuditEntry(**given)
            row_id, at = entry_id(chain, seq), NOW + seq
            digest = hash_of(head.hash, body_of(row_id, entry, at))
            row = AuditRow(
                chain=chain,
                seq=seq,
                id=row_id,
                timestamp=at,
                prev_hash=head.hash,
                hash=digest,
                **msgspec.structs.asdict(entry),
            )
            self.rows.setdefault(chain, []).append(row)
            self.heads[chain] = msgspec.structs.replace(head, seq=seq, hash=digest)

    def anchor(self) -> Anchor:
        """An anchor of how far the chains go."""
        number, prev = self._anchored
        heads = encode_heads(self.list_heads())
        digest = hash_of(prev, anchor_body(number + 1, NOW, heads))
        made = Anchor(number=number + 1, at=NOW, heads=heads, prev_hash=prev, hash=digest)
        self._anchored = (number + 1, digest)
        self.anchors.append(made)
        return made

    def purge(self, chain: int, upto: int, told_in: int | None = 0) -> None:
        """Retention: entries up to a place are removed, or anchors, and an entry tells of it."""
        if chain == ANCHOR_CHAIN:
            digest = self.anchors[upto - self.anchors[0].number].hash
            self.anchors = [one for one in self.anchors if one.number > upto]
        else:
            digest = next(row.hash for row in self.rows[chain] if row.seq == upto)
            self.rows[chain] = [row for row in self.rows[chain] if row.seq > upto]
            self.heads[chain] = msgspec.structs.replace(
                self.heads[chain], base_seq=upto, base_hash=digest
            )
        if told_in is not None:
            after = msgspec.json.encode({"chain": chain, "seq": upto, "hash": digest}).decode()
            self.add(told_in, event_type=PURGED, after=after)

    def alter(self, chain: int, seq: int, **members: Any) -> None:
        """Somebody writes something else into an entry."""
        self.rows[chain] = [
            msgspec.structs.replace(row, **members) if row.seq == seq else row
            for row in self.rows[chain]
        ]

    def remove(self, chain: int, seq: int) -> None:
        """Somebody takes an entry away."""
        self.rows[chain] = [row for row in self.rows[chain] if row.seq != seq]

    # what is read of it
    def find(self, wanted: str) -> AuditRow | None:
        rows = [row for chain in self.rows.values() for row in chain]
        return next((row for row in rows if row.id == wanted), None)

    def list_entries(
        self, wanted: AuditFilter, before: AuditPlace | None, limit: int
    ) -> PageRows[AuditRow]:
        self.asked.append((wanted, before, limit))
        rows = [row for chain in self.rows.values() for row in chain]
        return self._page(sorted(rows, key=lambda row: -row.timestamp), limit)

    def list_chain(self, chain: int, after: int, until: int, limit: int) -> PageRows[AuditRow]:
        self.asked.append((chain, after, until, limit))
        if self.on_chain:
            self.on_chain.pop(0)()
        rows = [row for row in self.rows.get(chain, []) if after < row.seq <= until]
        return self._page(rows, limit)

    def list_heads(self) -> list[ChainHead]:
        return [self.heads[chain] for chain in sorted(self.heads)]

    def list_anchors(self, after: int, limit: int) -> list[Anchor]:
        return [one for one in self.anchors if one.number > after][:limit]

    def _page(self, rows: list[AuditRow], limit: int) -> PageRows[AuditRow]:
        page = PageRows(rows[: min(limit, self.most_rows)])
        page.is_cut = len(page) == self.most_rows and len(rows) > self.most_rows < limit
        return page


class BookStore:
    """A store whose every transaction reads that audit."""

    def __init__(self, book: AuditBook, **tables: Any) -> None:
        self._tx = SimpleNamespace(audit=book, **tables)

    async def read(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(self._tx, *args)

    read_list = read
