"""The audit verified in portions, over one in memory: how far each goes, what it leaves open, and
what it finds."""

from collections.abc import Iterator

import pytest

from ksana.domain.governance.audit import ANCHOR_CHAIN, GENESIS
from ksana.service.governance import portions
from ksana.service.governance.portions import AuditCursor, AuditPortion, AuditPortions
from tests.unit.audit_ground import AuditBook, BookStore

pytestmark = pytest.mark.spec("G12")


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "PORTION", 3)
    monkeypatch.setattr(portions, "PAGE", 2)
    monkeypatch.setattr(portions, "ANCHORS", 2)


@pytest.fixture
def book() -> AuditBook:
    """Chains of three, four and four entries; nothing is anchored."""
    book = AuditBook()
    book.add(0, 3)
    book.add(2, 4)
    book.add(5, 4)
    return book


async def verify(book: AuditBook, cursor: AuditCursor | None = None) -> AuditPortion:
    return await AuditPortions(BookStore(book)).verify(cursor)  # type: ignore[arg-type]


async def verify_all(book: AuditBook) -> list[AuditPortion]:
    """Every portion, one after the other."""
    found = [await verify(book)]
    while found[-1].next is not None:
        found.append(await verify(book, found[-1].next))
    return found


def told(found: list[AuditPortion]) -> Iterator[tuple[str, int, int]]:
    for portion in found:
        yield from ((one.kind, one.chain, one.seq) for one in portion.findings)


async def test_each_portion_goes_on_where_the_last_one_ended(book: AuditBook) -> None:
    assert await verify_all(book) == [
        AuditPortion(3, 0, [], AuditCursor(0, 1, 0, GENESIS, {})),
        AuditPortion(3, 0, [], AuditCursor(0, 2, 3, book.rows[2][2].hash, {})),
        AuditPortion(3, 0, [], AuditCursor(0, 5, 2, book.rows[5][1].hash, {})),
        AuditPortion(2, 0, [], AuditCursor(0, ANCHOR_CHAIN, 0, GENESIS, {})),
        AuditPortion(0, 0, [], None),
    ]
    assert book.asked == [
        (0, 0, 3, 2),
        (0, 2, 3, 1),
        (2, 0, 4, 2),
        (2, 2, 4, 1),
        (2, 3, 4, 2),
        (5, 0, 4, 2),
        (5, 2, 4, 2),
    ]


async def test_a_portion_ends_where_the_bytes_of_its_entries_are_many(book: AuditBook) -> None:
    book.most_rows = 1
    first = await verify(book)
    assert first == AuditPortion(1, 0, [], AuditCursor(0, 0, 1, book.rows[0][0].hash, {}))


async def test_an_audit_without_entries_has_nothing_to_verify() -> None:
    assert await verify_all(AuditBook()) == [
        AuditPortion(0, 0, [], AuditCursor(0, ANCHOR_CHAIN, 0, GENESIS, {})),
        AuditPortion(0, 0, [], None),
    ]


async def test_faults_are_told_in_the_portion_that_reads_them(book: AuditBook) -> None:
    book.alter(0, 2, actor="mallory")
    book.remove(2, 4)
    book.remove(5, 1)
    found = await verify_all(book)
    assert list(told(found)) == [("ALTERED", 0, 2), ("CUT", 2, 4), ("MISSING", 5, 1)]
    assert len(found[0].findings) == 1
    assert not any(portion.is_restart for portion in found)


async def test_a_chain_that_lost_all_its_entries_is_told_as_cut(book: AuditBook) -> None:
    book.rows[2] = []
    assert list(told(await verify_all(book))) == [("CUT", 2, 1)]


@pytest.mark.parametrize("seq", [2, 9])
async def test_a_cursor_from_outside_of_a_chain_is_not_believed(book: AuditBook, seq: int) -> None:
    book.purge(2, 2)
    cursor = AuditCursor(2, 2, seq, "f" * 64, {2: (2, book.heads[2].base_hash)})
    found = await verify(book, cursor)
    assert (found.entries, found.findings) == (3, [])
    assert book.asked[0][:2] == (2, 2)


# Retention


async def test_what_retention_removed_and_told_of_goes_with_the_cursor(book: AuditBook) -> None:
    for _ in range(2):
        book.anchor()
    removed = book.anchors[0].hash
    book.purge(5, 3)
    book.purge(ANCHOR_CHAIN, 1)
    purged = {5: (3, book.heads[5].base_hash), ANCHOR_CHAIN: (1, removed)}
    found = await verify_all(book)
    assert list(told(found)) == []
    # The mark: what chains begin after, and the number of the first anchor.
    assert found[-2].next == AuditCursor(3 + 2, ANCHOR_CHAIN, 1, removed, purged)
    assert found[-1] == AuditPortion(0, 1, [], None)


async def test_what_was_removed_in_silence_is_told_at_the_end(book: AuditBook) -> None:
    book.purge(5, 3, told_in=None)
    found = await verify_all(book)
    assert list(told(found)) == [("PURGE", 5, 3)]
    assert found[-1].findings


async def test_it_begins_again_where_retention_makes_something_seem_wrong(
    book: AuditBook,
) -> None:
    book.anchor()
    first = await verify(book)
    assert first.next is not None
    assert first.next.mark == 1
    book.purge(0, 2, told_in=None)
    book.alter(2, 1, actor="mallory")
    again = await verify(book, first.next)
    start = AuditCursor(3, 0, 0, GENESIS, {})
    assert again == AuditPortion(0, 0, [], start, is_restart=True)
    # Nothing was removed since: now it is a fault.
    assert list(told([await verify(book, AuditCursor(3, 2, 0, GENESIS, {}))])) == [
        ("ALTERED", 2, 1)
    ]


async def test_removals_that_harm_nothing_are_passed_over(book: AuditBook) -> None:
    first = await verify(book)
    book.purge(0, 2)
    second = await verify(book, first.next)
    assert (second.entries, second.findings, second.is_restart) == (3, [], False)


# Anchors


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_anchors_are_checked_in_portions_too(book: AuditBook, number: int) -> None:
    for _ in range(number):
        book.anchor()
    found = [portion for portion in await verify_all(book) if portion.entries == 0]
    seconds = AuditCursor(1, ANCHOR_CHAIN, 2, book.anchors[min(1, number - 1)].hash, {})
    full = [AuditPortion(0, 2, [], seconds)] if number >= 2 else []
    if number == 4:
        full.append(
            AuditPortion(0, 2, [], AuditCursor(1, ANCHOR_CHAIN, 4, book.anchors[3].hash, {}))
        )
    assert found == [*full, AuditPortion(0, number % 2, [], None)]


async def test_what_anchors_say_is_held_against_the_entries_each_once(book: AuditBook) -> None:
    book.anchor()
    book.add(5)
    book.anchor()  # says the same again of the first two chains
    book.alter(0, 3, hash="f" * 64)
    book.alter(5, 5, hash="e" * 64)
    del book.heads[2], book.rows[2]
    found = [portion for portion in await verify_all(book) if portion.anchors]
    assert list(told(found)) == [("ANCHOR", 0, 3), ("CUT", 2, 4), ("ANCHOR", 5, 5)]
    assert "which ends at 0" in found[0].findings[1].message


async def test_an_anchor_that_is_missing_is_told(book: AuditBook) -> None:
    for _ in range(3):
        book.anchor()
    del book.anchors[1]
    assert list(told(await verify_all(book))) == [("MISSING", -1, 2)]
