"""The ledger over HTTP: `/api/v1/ledger` (B2)."""

import re
from typing import Annotated, Final

import msgspec

from ksana.api.core.routing import MAX_ID, Call, Route
from ksana.api.tasks.members import read_time, show_time
from ksana.base.clock import Clock
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, Instant, format_instant
from ksana.service.tasks.ledger import LedgerEntry, LedgerPlace, LedgerService

MAX_AHEAD: Final = 366 * DAY
"""How far a window may reach into the time to come."""

When = Annotated[str, msgspec.Meta(max_length=64)]

_CURSOR = re.compile(r"(\d{1,16})(?:\.(-?\d{1,19}))?\Z", re.ASCII)


class LedgerQuery(msgspec.Struct, frozen=True):
    """The window, one task or all, and the page."""

    since: When | None = msgspec.field(default=None, name="from")
    until: When | None = msgspec.field(default=None, name="to")
    task_id: Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)] | None = None
    cursor: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class LedgerSums(msgspec.Struct, frozen=True):
    """What became of slots. `expected` is the sum of `fired`, all of `skipped`, `forgotten`,
    `pending` and `missing`."""

    expected: int
    fired: int
    by_status: dict[str, int]
    skipped: dict[str, int]
    forgotten: int
    pending: int
    missing: int


class LedgerRow(LedgerSums, frozen=True, kw_only=True):
    """One task in a part of the window: `from` to before `to`. A page that has looked at enough may
    end in the midst of a task; the next one goes on with its rest."""

    task_id: int
    job_id: str
    name: str
    deleted: bool
    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    known_from: str | None


class LedgerShown(msgspec.Struct, frozen=True):
    """A page of the ledger, by the ids of tasks. `total` is of this page."""

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    total: LedgerSums
    tasks: list[LedgerRow]
    next_cursor: str | None


def routes(ledger: LedgerService, clock: Clock) -> list[Route]:
    """The ledger."""

    async def show_ledger(call: Call) -> LedgerShown:
        query: LedgerQuery = call.query
        now = clock.now()
        until = now if query.until is None else read_time(query.until, "to")
        since = until - DAY if query.since is None else read_time(query.since, "from")
        if since >= until:
            raise InvalidError("from must lie before to", field="from")
        if until > now + MAX_AHEAD:
            raise InvalidError("to must lie within a year from now", field="to")
        after = None if query.cursor is None else _read_cursor(query.cursor)
        page = await ledger.list_page(
            since, until, task_id=query.task_id, after=after, limit=query.limit
        )
        rows = [_show_row(entry) for entry in page.entries]
        return LedgerShown(
            since=format_instant(since),
            until=format_instant(until),
            total=_add_up(rows),
            tasks=rows,
            next_cursor=_show_cursor(page.next_place),
        )

    return [
        Route(
            "GET",
            "/api/v1/ledger",
            show_ledger,
            scope="tasks:read",
            tags=("tasks",),
            query=LedgerQuery,
            summary="Show what became of every slot: expected, fired, skipped, missing",
            answers={200: LedgerShown},
        ),
    ]


def _show_row(entry: LedgerEntry) -> LedgerRow:
    task, sums = entry.task, entry.sums
    return LedgerRow(
        task_id=task.id,
        job_id=task.job_id,
        name=task.definition.name,
        deleted=task.is_deleted,
        since=format_instant(entry.since),
        until=format_instant(entry.until),
        known_from=show_time(entry.known_since),
        expected=sums.expected,
        fired=sums.fired,
        by_status=sums.by_status,
        skipped=sums.skipped,
        forgotten=entry.forgotten,
        pending=sums.pending,
        missing=entry.missing,
    )


def _add_up(rows: list[LedgerRow]) -> LedgerSums:
    by_status: dict[str, int] = {}
    skipped: dict[str, int] = {}
    for row in rows:
        for into, counts in ((by_status, row.by_status), (skipped, row.skipped)):
            for name, count in counts.items():
                into[name] = into.get(name, 0) + count
    return LedgerSums(
        expected=sum(row.expected for row in rows),
        fired=sum(row.fired for row in rows),
        by_status=by_status,
        skipped=skipped,
        forgotten=sum(row.forgotten for row in rows),
        pending=sum(row.pending for row in rows),
        missing=sum(row.missing for row in rows),
    )


def _read_cursor(text: str) -> LedgerPlace:
    match = _CURSOR.match(text)
    if match is None:
        raise InvalidError("cursor is not one that a page answered", field="cursor")
    since: Instant | None = None if match[2] is None else int(match[2])
    return LedgerPlace(int(match[1]), since)


def _show_cursor(place: LedgerPlace | None) -> str | None:
    if place is None:
        return None
    return str(place.task_id) if place.since is None else f"{place.task_id}.{place.since}"
