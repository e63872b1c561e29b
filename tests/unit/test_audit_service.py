"""The audit as people ask for it, over one in memory: lists, the whole verification, the export."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ksana.base.errors import NotFoundError
from ksana.domain.governance.audit import (
    ANCHOR_CHAIN,
    AuditFinding,
    anchor_body,
    body_of,
)
from ksana.ports.governance.tables import AuditFilter
from ksana.service.governance import audit as service
from ksana.service.governance.audit import AuditPage, AuditReport, AuditService
from tests.unit.audit_ground import AuditBook, BookStore
from tests.unit.governance_ground import a_job

pytestmark = pytest.mark.spec("G12")


@pytest.fixture
def book() -> AuditBook:
    """Two chains and two anchors."""
    book = AuditBook()
    book.add(0, 2)
    book.anchor()
    book.add(0)
    book.add(4, 4)
    book.anchor()
    return book


def audit_of(book: AuditBook, **tables: Any) -> AuditService:
    return AuditService(BookStore(book, **tables))  # type: ignore[arg-type]


async def verify(book: AuditBook, known: str | None = None) -> AuditReport:
    return await audit_of(book).verify(known)


def told(report: AuditReport) -> list[tuple[str, int, int]]:
    return [(one.kind, one.chain, one.seq) for one in report.findings]


# Verified


@pytest.mark.parametrize("page", [1, 2, 3, 4, 2000])
@pytest.mark.parametrize("most_rows", [1, 2, 1000])
async def test_a_whole_audit_is_well_by_pages_of_any_size(
    book: AuditBook, page: int, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PAGE", page)
    book.most_rows = most_rows
    report = await verify(book)
    assert report == AuditReport(7, 2, 2, book.anchors[-1].hash, [])
    assert report.ok is True


async def test_an_empty_audit_is_well() -> None:
    assert await verify(AuditBook()) == AuditReport(0, 0, 0, None, [])


async def test_faults_are_told_by_chain_and_place(book: AuditBook) -> None:
    book.alter(0, 3, actor="mallory")
    book.remove(4, 4)
    report = await verify(book)
    # Of the end that is missing the chain tells, and the anchor.
    assert told(report) == [("ALTERED", 0, 3), ("CUT", 4, 4), ("CUT", 4, 4)]
    assert (report.ok, report.entries) == (False, 6)


async def test_a_chain_that_only_anchors_know_is_told_as_cut(book: AuditBook) -> None:
    del book.heads[4], book.rows[4]
    report = await verify(book)
    assert (told(report), report.chains) == ([("CUT", 4, 4)], 1)
    assert "which ends at 0" in report.findings[0].message


async def test_what_retention_removed_is_no_fault_if_the_audit_tells_of_it(
    book: AuditBook,
) -> None:
    book.purge(4, 2)
    book.purge(ANCHOR_CHAIN, 1, told_in=4)
    assert await verify(book) == AuditReport(7, 2, 1, book.anchors[-1].hash, [])


async def test_what_was_removed_in_silence_is_a_fault(book: AuditBook) -> None:
    book.purge(4, 2, told_in=None)
    book.purge(ANCHOR_CHAIN, 1, told_in=None)
    assert told(await verify(book)) == [("MISSING", -1, 1), ("PURGE", 4, 2)]


async def test_an_anchor_that_was_noted_elsewhere_must_be_there(book: AuditBook) -> None:
    first, last = book.anchors
    assert (await verify(book, first.hash)).ok
    assert (await verify(book, last.hash)).ok
    report = await verify(book, "f" * 70)
    cut = AuditFinding(kind="CUT", chain=-1, seq=0, message=f"the anchor {'f' * 64} is not there")
    assert report.findings == [cut]


async def test_it_begins_again_where_retention_removed_what_it_was_about_to_read(
    book: AuditBook,
) -> None:
    book.on_chain = [lambda: None, lambda: book.purge(4, 2)]
    report = await verify(book, book.anchors[0].hash)
    assert (report.entries, report.ok) == (6, True)


async def test_a_fault_is_told_though_retention_removed_entries_of_another_chain(
    book: AuditBook,
) -> None:
    book.add(9)
    book.alter(0, 2, actor="mallory")
    book.on_chain = [lambda: book.purge(4, 2, told_in=9)]
    assert ("ALTERED", 0, 2) in told(await verify(book))


# Listed


@pytest.mark.parametrize("limit", [2, 6, 7, 8])
async def test_a_page_of_entries_ends_with_the_place_to_go_on(limit: int) -> None:
    book = AuditBook()
    book.add(0, 7)
    page = await audit_of(book).list_entries(AuditFilter(actor="w1"), (5, 0, 9), limit)
    newest = book.rows[0][::-1]
    last = newest[limit - 1] if limit < 7 else None
    before = None if last is None else (last.timestamp, 0, last.seq)
    assert page == AuditPage(newest[:limit], before)
    assert book.asked == [(AuditFilter(actor="w1"), (5, 0, 9), limit + 1)]


async def test_a_page_that_is_short_for_its_bytes_goes_on_all_the_same() -> None:
    book = AuditBook()
    book.add(0, 7)
    book.most_rows = 2
    page = await audit_of(book).list_entries(AuditFilter(), None, 5)
    last = book.rows[0][5]
    assert page == AuditPage(book.rows[0][:4:-1], (last.timestamp, 0, 6))


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (
            AuditFilter(job_id="j1"),
            AuditFilter(job_id="j1", object_type="memory", object_id="m1"),
        ),
        (AuditFilter(job_id="j1", object_id="m5"), AuditFilter(job_id="j1", object_id="m5")),
        (AuditFilter(object_type="memory"), AuditFilter(object_type="memory")),
        (AuditFilter(job_id="j2"), None),
    ],
)
async def test_entries_of_a_job_are_found_by_its_object(
    wanted: AuditFilter, asked: AuditFilter | None
) -> None:
    book = AuditBook()
    book.add(0)
    jobs = SimpleNamespace(find=lambda job_id: a_job() if job_id == "j1" else None)
    page = await audit_of(book, governance=jobs).list_entries(wanted, None, 10)
    assert [one[0] for one in book.asked] == ([] if asked is None else [asked])
    assert page == AuditPage([] if asked is None else book.rows[0], None)


async def test_one_entry_is_found_by_its_id(book: AuditBook) -> None:
    row = book.rows[4][1]
    assert await audit_of(book).get_entry(row.id) == row
    with pytest.raises(NotFoundError):
        await audit_of(book).get_entry("aud_0000000000000009")


# Exported


@pytest.mark.parametrize("page", [1, 2, 2000])
async def test_the_export_has_every_chain_entry_and_anchor_as_it_was_hashed(
    book: AuditBook, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PAGE", page)
    book.purge(4, 2)
    lines = [line async for line in audit_of(book).export()]
    assert all(line.endswith(b"\n") for line in lines)
    expected: list[dict[str, Any]] = []
    for head in book.list_heads():
        expected.append({"kind": "chain", **msgspec.structs.asdict(head)})
        expected += [
            {
                "kind": "entry",
                "chain": row.chain,
                "seq": row.seq,
                "prev_hash": row.prev_hash,
                "hash": row.hash,
                "body": body_of(row.id, row, row.timestamp).decode(),
            }
            for row in book.rows[head.chain]
        ]
    expected += [
        {
            "kind": "anchor",
            "number": anchor.number,
            "prev_hash": anchor.prev_hash,
            "hash": anchor.hash,
            "body": anchor_body(anchor.number, anchor.at, anchor.heads).decode(),
        }
        for anchor in book.anchors
    ]
    assert [msgspec.json.decode(line) for line in lines] == expected
