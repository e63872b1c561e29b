"""Hash chains: whatever is done to a row is found, and named."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.domain.governance.audit import (
    GENESIS,
    PURGED,
    Anchor,
    AuditEntry,
    AuditFinding,
    AuditRow,
    ChainCheck,
    ChainHead,
    Expectations,
    anchor_body,
    body_of,
    encode_heads,
    entry_id,
    hash_of,
    note_purge,
    place_of,
    verify_anchored,
    verify_anchors,
    verify_purges,
)

NOW = 1_770_000_000_000_000


def a_chain(count: int, chain: int = 3) -> list[AuditRow]:
    rows: list[AuditRow] = []
    prev = GENESIS
    for seq in range(1, count + 1):
        entry = AuditEntry(
            event_type="job.ack",
            actor="w1",
            object_type="memory",
            object_id=f"m{seq}",
            before='{"status":"running"}',
            after='{"status":"succeeded","weight":0.1}',
            job_id=f"job_{seq}",
        )
        row_id = entry_id(chain, seq)
        digest = hash_of(prev, body_of(row_id, entry, NOW + seq))
        rows.append(
            AuditRow(
                chain=chain,
                seq=seq,
                id=row_id,
                timestamp=NOW + seq,
                prev_hash=prev,
                hash=digest,
                **msgspec.structs.asdict(entry),
            )
        )
        prev = digest
    return rows


def head_of(rows: list[AuditRow]) -> ChainHead:
    return ChainHead(chain=rows[-1].chain, seq=rows[-1].seq, hash=rows[-1].hash)


def check(
    rows: list[AuditRow], head: ChainHead, anchors: tuple[Anchor, ...] = ()
) -> list[AuditFinding]:
    checked = ChainCheck(head, Expectations(anchors).of(head.chain))
    return [*checked.feed(rows), *checked.finish()]


def an_anchor(*heads: ChainHead, number: int = 1, prev: str = GENESIS) -> Anchor:
    text = encode_heads(heads)
    digest = hash_of(prev, anchor_body(number, NOW, text))
    return Anchor(number=number, at=NOW, heads=text, prev_hash=prev, hash=digest)


@pytest.mark.spec("G12")
def test_a_whole_chain_verifies() -> None:
    rows = a_chain(20)
    assert check(rows, head_of(rows), (an_anchor(head_of(rows[:7])),)) == []


MEMBERS = ("actor", "object_id", "before", "after", "reason", "job_id", "event_type", "timestamp")


@pytest.mark.spec("G12")
@given(place=st.integers(0, 9), member=st.sampled_from(MEMBERS))
def test_any_altered_member_is_found_and_its_row_named(place: int, member: str) -> None:
    rows = a_chain(10)
    forged = 1 if member == "timestamp" else '"forged"'
    altered = msgspec.structs.replace(rows[place], **{member: forged})
    found = check([*rows[:place], altered, *rows[place + 1 :]], head_of(rows))
    assert [(one.kind, one.seq) for one in found] == [("ALTERED", place + 1)]


@pytest.mark.spec("G12")
@given(place=st.integers(0, 9))
def test_a_missing_row_is_found_and_named(place: int) -> None:
    rows = a_chain(10)
    found = check([*rows[:place], *rows[place + 1 :]], head_of(rows))
    assert [one.seq for one in found] == [place + 1]
    assert found[0].kind == ("MISSING" if place < 9 else "CUT")


@pytest.mark.spec("G12")
@given(places=st.lists(st.integers(0, 9), min_size=2, max_size=2, unique=True))
def test_rows_that_changed_places_are_found_and_named(places: list[int]) -> None:
    rows = a_chain(10)
    one, other = places
    swapped = list(rows)
    swapped[one] = msgspec.structs.replace(rows[other], seq=one + 1)
    swapped[other] = msgspec.structs.replace(rows[one], seq=other + 1)
    found = {
        finding.seq for finding in check(swapped, head_of(rows)) if finding.kind == "REORDERED"
    }
    assert found == {one + 1, other + 1}


@pytest.mark.spec("G12")
def test_a_chain_forged_from_a_row_on_contradicts_the_anchor() -> None:
    rows = a_chain(10)
    anchors = (an_anchor(head_of(rows)),)
    forged = a_chain(10)
    prev = forged[4].hash
    for at in range(5, 10):
        row = msgspec.structs.replace(forged[at], actor="mallory", prev_hash=prev)
        prev = hash_of(prev, body_of(row.id, row, row.timestamp))
        forged[at] = msgspec.structs.replace(row, hash=prev)
    assert check(forged, head_of(forged)) == []
    found = check(forged, head_of(forged), anchors)
    assert [(one.kind, one.seq) for one in found] == [("ANCHOR", 10)]


@pytest.mark.spec("G12")
def test_an_end_that_was_cut_off_with_its_record_contradicts_the_anchor() -> None:
    rows = a_chain(10)
    anchors = (an_anchor(head_of(rows[:8])),)
    found = check(rows[:6], head_of(rows[:6]), anchors)
    assert [(one.kind, one.seq) for one in found] == [("CUT", 8)]


@pytest.mark.spec("G12")
def test_anchors_are_a_chain_themselves() -> None:
    rows = a_chain(10)
    first = an_anchor(head_of(rows[:3]))
    second = an_anchor(head_of(rows[:6]), number=2, prev=first.hash)
    third = an_anchor(head_of(rows), number=3, prev=second.hash)
    whole = [first, second, third]
    assert list(verify_anchors(whole, (0, GENESIS))) == []
    assert [one.seq for one in verify_anchors([first, third], (0, GENESIS))] == [2]
    altered = msgspec.structs.replace(second, heads="[]")
    assert [one.seq for one in verify_anchors([first, altered, third], (0, GENESIS))] == [2]
    assert list(verify_anchors([second, third], (1, first.hash))) == []


@pytest.mark.spec("G12")
def test_a_removed_beginning_verifies_only_where_an_entry_tells_of_it() -> None:
    rows = a_chain(10)
    head = ChainHead(chain=3, seq=10, hash=rows[-1].hash, base_seq=4, base_hash=rows[3].hash)
    assert check(rows[4:], head) == []
    assert list(verify_purges([head], {3: (4, rows[3].hash)})) == []
    assert [one.kind for one in verify_purges([head], {})] == ["PURGE"]
    assert [one.kind for one in verify_purges([head], {3: (3, rows[2].hash)})] == ["PURGE"]


@pytest.mark.spec("G12")
def test_an_id_says_where_it_was_written() -> None:
    chance = random.Random(1)
    for _ in range(100):
        chain, seq = chance.randrange(64), chance.randrange(1, 2**40)
        assert place_of(entry_id(chain, seq)) == (chain, seq)
    assert place_of("aud_789") is None
    assert place_of("aud_zzzz000000000001") is None


def finding_of(found: list[AuditFinding]) -> tuple[str, int, int, str, str | None]:
    [one] = found
    return one.kind, one.chain, one.seq, one.message, one.id


def test_each_fault_of_a_chain_has_its_kind_and_its_words() -> None:
    rows = a_chain(5)
    head = head_of(rows)
    words = "entry 2 of chain 3 is missing"
    assert finding_of(check([rows[0], *rows[2:]], head)) == ("MISSING", 3, 2, words, entry_id(3, 2))
    words = "entry 2 to 3 of chain 3 is missing"
    assert finding_of(check([rows[0], *rows[3:]], head)) == ("MISSING", 3, 2, words, entry_id(3, 2))
    cut = finding_of(check(rows[:3], head))
    words = "chain 3 lacks its end: entries 4 to 5"
    assert cut == ("CUT", 3, 4, words, entry_id(3, 4))
    other = msgspec.structs.replace(head, hash="0" * 64)
    words = "chain 3 ends with another hash than is recorded for it"
    assert finding_of(check(rows, other)) == ("ALTERED", 3, 5, words, entry_id(3, 5))
    moved = msgspec.structs.replace(rows[2], id=entry_id(3, 9))
    kinds = [(one.kind, one.seq) for one in check([*rows[:2], moved, *rows[3:]], head)]
    assert ("REORDERED", 3) in kinds
    again = check([*rows[:2], rows[0], *rows[2:]], head)[0]
    words = f"entry 1 of chain 3 ({rows[0].id}) comes after 2"
    assert finding_of([again]) == ("REORDERED", 3, 1, words, rows[0].id)


def test_a_row_that_follows_another_is_told_as_altered() -> None:
    rows = a_chain(3)
    body = body_of(rows[1].id, rows[1], rows[1].timestamp)
    forged = msgspec.structs.replace(rows[1], prev_hash="0" * 64, hash=hash_of("0" * 64, body))
    found = list(ChainCheck(head_of(rows)).feed([rows[0], forged]))
    assert [(one.kind, one.seq) for one in found] == [("ALTERED", 2)]
    assert "does not follow the entry before it" in found[0].message


def test_rows_are_counted_as_they_are_fed() -> None:
    rows = a_chain(3)
    checking = ChainCheck(head_of(rows))
    assert checking.count == 0
    assert list(checking.feed(rows[:2])) == []
    assert list(checking.feed(rows[2:])) == []
    assert checking.count == 3
    assert list(checking.finish()) == []


def test_each_fault_of_the_anchors_has_its_kind_and_place() -> None:
    head = head_of(a_chain(2))
    first = an_anchor(head)
    second = an_anchor(head, number=2, prev=first.hash)
    third = an_anchor(head, number=3, prev=second.hash)
    base = (0, GENESIS)
    assert list(verify_anchors([first, second, third], base)) == []
    assert list(verify_anchors([second, third], (1, first.hash))) == []
    words = "anchor 2 is missing: 3 comes after 1"
    assert finding_of(list(verify_anchors([first, third], base)))[:4] == ("MISSING", -1, 2, words)
    stray = an_anchor(head, number=2, prev="0" * 64)
    words = "anchor 2 does not follow the one before it"
    assert finding_of(list(verify_anchors([first, stray], base)))[:4] == ("REORDERED", -1, 2, words)
    altered = msgspec.structs.replace(second, at=second.at + 1_000_000)
    words = "anchor 2 was altered: its hash is another"
    found = list(verify_anchors([first, altered], base))
    assert finding_of(found)[:4] == ("ALTERED", -1, 2, words)


def test_anchors_say_what_they_know_of_each_chain_once() -> None:
    rows, others = a_chain(4), a_chain(2, chain=5)
    early, late = head_of(rows[:2]), head_of(rows)
    first = an_anchor(early, head_of(others))
    second = an_anchor(late, head_of(others), number=2, prev=first.hash)
    again = an_anchor(late, number=3, prev=second.hash)
    known = Expectations([first, second, again])
    assert known.chains == {3, 5}
    assert known.of(3) == [(2, rows[1].hash, 1), (4, rows[3].hash, 2)]
    assert known.of(5) == [(2, others[1].hash, 1)]
    assert known.of(9) == []
    # The same place with another hash is something else that an anchor said.
    forged = an_anchor(msgspec.structs.replace(late, hash="0" * 64), number=2, prev=first.hash)
    assert len(Expectations([second, forged]).of(3)) == 2


def test_anchors_are_compared_in_order_and_from_where_the_chain_begins() -> None:
    rows = a_chain(5)
    based = ChainHead(3, 5, rows[4].hash, 2, rows[1].hash)
    anchored = [(2, "0" * 64, 1), (3, rows[2].hash, 2), (4, "0" * 64, 3)]
    checking = ChainCheck(based, anchored)
    found = list(checking.feed(rows[2:]))
    assert [(one.kind, one.seq) for one in found] == [("ANCHOR", 4)]
    assert "anchor 3" in found[0].message
    assert list(checking.finish()) == []
    # Each that lies on the chain is compared, however low its number.
    found = list(ChainCheck(based, [(3, "0" * 64, 1), (4, rows[3].hash, 2)]).feed(rows[2:]))
    assert [(one.kind, one.seq) for one in found] == [("ANCHOR", 3)]
    # Of two that lie beyond the end, the nearer is told.
    short = ChainCheck(head_of(rows[:2]), [(2, rows[1].hash, 1), (3, "x", 2), (4, "y", 3)])
    assert list(short.feed(rows[:2])) == []
    words = "anchor 2 has entry 3 of chain 3, which ends at 2"
    assert finding_of(list(short.finish())) == ("CUT", 3, 3, words, entry_id(3, 3))


def test_one_entry_is_compared_with_what_an_anchor_says_of_it() -> None:
    rows = a_chain(5)
    head = ChainHead(3, 4, rows[3].hash, 2, rows[1].hash)

    def compare(place: int, row: AuditRow | None, told: str) -> list[AuditFinding]:
        return list(verify_anchored(7, (3, place, told), head, row))

    assert compare(2, None, "0" * 64) == [], "it was removed by retention"
    assert compare(3, rows[2], rows[2].hash) == []
    words = "anchor 7 has entry 3 of chain 3, which is missing"
    assert finding_of(compare(3, None, "x")) == ("MISSING", 3, 3, words, entry_id(3, 3))
    words = f"entry 4 of chain 3 ({rows[3].id}) has another hash than anchor 7 says"
    assert finding_of(compare(4, rows[3], "x")) == ("ANCHOR", 3, 4, words, entry_id(3, 4))
    words = "anchor 7 has entry 5 of chain 3, which ends at 4"
    assert finding_of(compare(5, None, "x")) == ("CUT", 3, 5, words, entry_id(3, 5))


def test_the_furthest_removal_that_entries_tell_of_is_remembered() -> None:
    [row] = a_chain(1)
    purged: dict[int, tuple[int, str]] = {}

    def tell(seq: object, digest: str, event_type: str = PURGED) -> None:
        after = msgspec.json.encode({"chain": 3, "seq": seq, "hash": digest}).decode()
        note_purge(msgspec.structs.replace(row, event_type=event_type, after=after), purged)

    tell(4, "x", "job.ack")
    tell("four", "x")
    tell(0, "x")
    note_purge(msgspec.structs.replace(row, event_type=PURGED, after=None), purged)
    assert purged == {}
    tell(4, "four")
    tell(4, "another")
    tell(3, "three")
    assert purged == {3: (4, "four")}
    tell(5, "five")
    assert purged == {3: (5, "five")}


@pytest.mark.parametrize(
    "odd", ["", "aud_", "x" * 20, entry_id(1, 2)[4:], entry_id(1, 2) + "0", "aud_" + "g" * 16]
)
def test_what_is_no_id_of_ours_has_no_place(odd: str) -> None:
    assert place_of(odd) is None


def test_a_place_is_read_from_its_digits() -> None:
    assert entry_id(0xABCD, 0x123456789ABC) == "aud_abcd123456789abc"
    assert place_of("aud_abcd123456789abc") == (0xABCD, 0x123456789ABC)
