"""The audit: entries, their one form as bytes, hash chains, anchors, and how they are verified.
Pure. ADR 19 has the reasons.

An entry is a JSON object with its members in one order, made of what the row holds (`body_of`). Its
hash is SHA-256 over the hash before it, a line feed, and that text. Entries stand in chains, by
`(chain, seq)` from 1; an entry's id says where it was written. An anchor is a list of the chains'
ends at one moment, itself in a chain of anchors. So a row that is altered, missing or in another's
place is found and named, and a chain cut short is found by the anchors and by its recorded end.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from ksana.base.instant import Instant, format_instant

GENESIS: Final = "0" * 64
"""The hash before a chain's first entry."""

ANCHORED: Final = "audit.anchor"
PURGED: Final = "audit.purge"
ANCHOR_CHAIN: Final = -1
"""Stands for the chain of anchors."""
SYSTEM: Final = "system"
"""Who acts where nobody asked."""

_encode = msgspec.json.Encoder().encode


class AuditEntry(msgspec.Struct, frozen=True, gc=False):
    """What happened, before it has its place in a chain. Texts with JSON in them stay as they
    are."""

    event_type: str
    actor: str
    object_type: str | None = None
    object_id: str | None = None
    before: str | None = None
    after: str | None = None
    reason: str | None = None
    evidence_refs: str | None = None
    job_id: str | None = None
    correlation_id: str | None = None
    decision_trace_id: str | None = None


class AuditRow(msgspec.Struct, frozen=True, gc=False):
    """An entry in its place."""

    chain: int
    seq: int
    id: str
    event_type: str
    actor: str
    object_type: str | None
    object_id: str | None
    before: str | None
    after: str | None
    reason: str | None
    evidence_refs: str | None
    job_id: str | None
    correlation_id: str | None
    decision_trace_id: str | None
    timestamp: Instant
    prev_hash: str
    hash: str


class _Body(msgspec.Struct, frozen=True, gc=False):
    id: str
    event_type: str
    actor: str
    object_type: str | None
    object_id: str | None
    before: msgspec.Raw | None
    after: msgspec.Raw | None
    reason: str | None
    evidence_refs: msgspec.Raw | None
    job_id: str | None
    correlation_id: str | None
    decision_trace_id: str | None
    timestamp: str


class ChainHead(msgspec.Struct, frozen=True, gc=False):
    """How far a chain goes, and where it begins now that old entries were removed."""

    chain: int
    seq: int
    hash: str
    base_seq: int = 0
    base_hash: str = GENESIS


class Anchor(msgspec.Struct, frozen=True, gc=False):
    """The ends of all chains at one moment."""

    number: int
    at: Instant
    heads: str
    """A JSON array of `[chain, seq, hash]`, as it was written."""
    prev_hash: str
    hash: str

    def list_heads(self) -> list[tuple[int, int, str]]:
        """The ends, read; none of an anchor that was altered, which is found by its hash."""
        try:
            return msgspec.json.decode(self.heads, type=list[tuple[int, int, str]])
        except msgspec.DecodeError:
            return []


Purged = Mapping[int, tuple[int, str]]
"""By chain, how far entries were removed: the last one's place and hash."""

FindingKind = Literal["ALTERED", "MISSING", "REORDERED", "CUT", "ANCHOR", "PURGE"]


class AuditFinding(msgspec.Struct, frozen=True):
    """Something wrong, and where."""

    kind: FindingKind
    chain: int
    """-1 for the chain of anchors."""
    seq: int
    message: str
    id: str | None = None


def entry_id(chain: int, seq: int) -> str:
    """An entry's id: `aud_`, four hex digits of the chain, twelve of its place."""
    return f"aud_{chain:04x}{seq:012x}"


def place_of(entry: str) -> tuple[int, int] | None:
    """The chain and the place an id was made for; None if it is no id of ours."""
    digits = entry.removeprefix("aud_")
    if len(digits) != 16 or len(entry) != 20:
        return None
    try:
        return int(digits[:4], 16), int(digits[4:], 16)
    except ValueError:
        return None


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


def body_of(entry_id: str, entry: AuditEntry | AuditRow, timestamp: Instant) -> bytes:
    """The text that is hashed, and exported."""
    return _encode(
        _Body(
            entry_id,
            entry.event_type,
            entry.actor,
            entry.object_type,
            entry.object_id,
            _raw(entry.before),
            _raw(entry.after),
            entry.reason,
            _raw(entry.evidence_refs),
            entry.job_id,
            entry.correlation_id,
            entry.decision_trace_id,
            format_instant(timestamp),
        )
    )


def hash_of(prev_hash: str, body: bytes) -> str:
    """The hash of an entry after another."""
    return hashlib.sha256(prev_hash.encode() + b"\n" + body).hexdigest()


def anchor_body(number: int, at: Instant, heads: str) -> bytes:
    """The text of an anchor that is hashed, and exported."""
    return b'{"anchor":%d,"timestamp":%s,"heads":%s}' % (
        number,
        _encode(format_instant(at)),
        heads.encode(),
    )


def encode_heads(heads: Iterable[ChainHead]) -> str:
    """The ends of chains as an anchor keeps them; empty chains are left out."""
    return _encode([(head.chain, head.seq, head.hash) for head in heads if head.seq]).decode()


# Verification


class Expectations:
    """What the anchors say about the chains, by chain in order of places."""

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        self._by_chain: dict[int, list[tuple[int, str, int]]] = {}
        for anchor in anchors:
            for chain, seq, expected in anchor.list_heads():
                known = self._by_chain.setdefault(chain, [])
                if not known or known[-1][:2] != (seq, expected):
                    known.append((seq, expected, anchor.number))

    def of(self, chain: int) -> list[tuple[int, str, int]]:
        """(place, hash, anchor) in order."""
        return sorted(self._by_chain.get(chain, []))

    @property
    def chains(self) -> frozenset[int]:
        """The chains that anchors know."""
        return frozenset(self._by_chain)


def verify_anchors(anchors: Sequence[Anchor], base: tuple[int, str]) -> Iterator[AuditFinding]:
    """Check the chain of anchors. `base` is the last one that was removed."""
    number, prev = base
    for anchor in anchors:
        expected = number + 1
        if anchor.number != expected:
            yield AuditFinding(
                kind="MISSING",
                chain=-1,
                seq=expected,
                message=f"anchor {expected} is missing: {anchor.number} comes after {number}",
            )
        elif anchor.prev_hash != prev:
            yield AuditFinding(
                kind="REORDERED",
                chain=-1,
                seq=anchor.number,
                message=f"anchor {anchor.number} does not follow the one before it",
            )
        body = anchor_body(anchor.number, anchor.at, anchor.heads)
        if hash_of(anchor.prev_hash, body) != anchor.hash:
            yield AuditFinding(
                kind="ALTERED",
                chain=-1,
                seq=anchor.number,
                message=f"anchor {anchor.number} was altered: its hash is another",
            )
        number, prev = anchor.number, anchor.hash


class ChainCheck:
    """Checks one chain, fed with its rows in the order of their places, in as many pieces as one
    likes; then asked for its end."""

    def __init__(self, head: ChainHead, anchored: Sequence[tuple[int, str, int]] = ()) -> None:
        self._head = head
        self.seq = head.base_seq
        """The place of the last row."""
        self.hash = head.base_hash
        """Its hash."""
        self._anchored = [one for one in anchored if one[0] > head.base_seq]
        self._anchored.reverse()
        self.count = 0

    def feed(self, rows: Iterable[AuditRow]) -> Iterator[AuditFinding]:
        """Check the next rows."""
        for row in rows:
            self.count += 1
            yield from self._check_place(row)
            if hash_of(row.prev_hash, body_of(row.id, row, row.timestamp)) != row.hash:
                yield self._found("ALTERED", row, "was altered: its hash is another")
            yield from self._check_anchors(row)
            # Go on from what the row says, so that one fault is told once.
            self.seq, self.hash = row.seq, row.hash

    def finish(self) -> Iterator[AuditFinding]:
        """Check that the chain ends where it is said to end."""
        head, seq = self._head, self.seq
        if seq < head.seq:
            yield AuditFinding(
                kind="CUT",
                chain=head.chain,
                seq=seq + 1,
                message=f"chain {head.chain} lacks its end: entries {seq + 1} to {head.seq}",
                id=entry_id(head.chain, seq + 1),
            )
        elif seq == head.seq and self.hash != head.hash:
            yield AuditFinding(
                kind="ALTERED",
                chain=head.chain,
                seq=seq,
                message=f"chain {head.chain} ends with another hash than is recorded for it",
                id=entry_id(head.chain, seq),
            )
        for place, _, anchor in reversed(self._anchored):
            if place > seq:
                yield AuditFinding(
                    kind="CUT",
                    chain=head.chain,
                    seq=place,
                    message=f"anchor {anchor} has entry {place} of chain {head.chain},"
                    f" which ends at {seq}",
                    id=entry_id(head.chain, place),
                )
                return

    def _check_place(self, row: AuditRow) -> Iterator[AuditFinding]:
        expected = self.seq + 1
        if row.seq > expected:
            last = row.seq - 1
            span = f"{expected}" if last == expected else f"{expected} to {last}"
            yield AuditFinding(
                kind="MISSING",
                chain=row.chain,
                seq=expected,
                message=f"entry {span} of chain {row.chain} is missing",
                id=entry_id(row.chain, expected),
            )
        elif row.seq < expected:
            yield self._found("REORDERED", row, f"comes after {self.seq}")
        elif place_of(row.id) != (row.chain, row.seq):
            yield self._found("REORDERED", row, "stands in the place of another")
        elif row.prev_hash != self.hash:
            yield self._found("ALTERED", row, "does not follow the entry before it")

    def _check_anchors(self, row: AuditRow) -> Iterator[AuditFinding]:
        anchored = self._anchored
        while anchored and anchored[-1][0] <= row.seq:
            place, expected, anchor = anchored.pop()
            if place == row.seq and expected != row.hash:
                yield self._found("ANCHOR", row, f"has another hash than anchor {anchor} says")

    def _found(self, kind: FindingKind, row: AuditRow, what: str) -> AuditFinding:
        place = f"entry {row.seq} of chain {row.chain}"
        return AuditFinding(
            kind=kind, chain=row.chain, seq=row.seq, message=f"{place} ({row.id}) {what}", id=row.id
        )


def verify_anchored(
    anchor: int, told: tuple[int, int, str], head: ChainHead, row: AuditRow | None
) -> Iterator[AuditFinding]:
    """Check what an anchor says of one entry, which is `row` now: (chain, place, hash)."""
    chain, place, expected = told
    if place <= head.base_seq:
        return  # removed by retention
    entry = f"entry {place} of chain {chain}"
    kind: FindingKind = "CUT" if place > head.seq else "MISSING" if row is None else "ANCHOR"
    if kind == "CUT":
        message = f"anchor {anchor} has {entry}, which ends at {head.seq}"
    elif row is None:
        message = f"anchor {anchor} has {entry}, which is missing"
    elif row.hash != expected:
        message = f"{entry} ({row.id}) has another hash than anchor {anchor} says"
    else:
        return
    yield AuditFinding(
        kind=kind, chain=chain, seq=place, message=message, id=entry_id(chain, place)
    )


def note_purge(row: AuditRow, purged: dict[int, tuple[int, str]]) -> None:
    """Remember the furthest removal that entries tell of, by chain."""
    if row.event_type != PURGED or row.after is None:
        return
    try:
        told = msgspec.json.decode(row.after)
        chain, seq, digest = int(told["chain"]), int(told["seq"]), str(told["hash"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return  # an altered entry, which is found by its hash
    if seq > purged.get(chain, (0, ""))[0]:
        purged[chain] = (seq, digest)


def verify_purges(heads: Iterable[ChainHead], purged: Purged) -> Iterator[AuditFinding]:
    """Check that entries at the beginning of a chain were removed by retention: the newest removal
    that the audit itself tells of must be where the chain begins now."""
    for head in heads:
        told = purged.get(head.chain)
        if head.base_seq and told != (head.base_seq, head.base_hash):
            yield AuditFinding(
                kind="PURGE",
                chain=head.chain,
                seq=head.base_seq,
                message=f"chain {head.chain} begins after {head.base_seq}, and no entry tells of"
                " that removal",
            )
