"""Pages of runs: ids from an index first, then the rows."""

from typing import Any, Final

from ksana.base.instant import Instant
from ksana.domain.tasks.call_records import MOST_GROWTH
from ksana.domain.tasks.records import Run
from ksana.ports.pages import (
    COUNT_LIMIT,
    LOOK_UP,
    MAX_PAGE_BYTES,
    PageRows,
    Place,
    Total,
)
from ksana.ports.tasks.runs import RunFilter
from ksana.store.sql.core.looking import look_through
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.tasks.runs import KIND, read_run

_ATTEMPTS: Final = 31
"""Their place in a run's row."""
_FEW_ATTEMPTS: Final = 64 * 1024
"""So many characters of attempts do not make a page large, whatever they grow to."""

_EVER: Final = 1 << 62
"""Beyond every id and instant."""


class SqlRunLists:
    """The lists of runs of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._counts = tx.row_counts
        session.avoid_sorts()

    def list_page(
        self, wanted: RunFilter, after: Place | None, limit: int, skip: int = 0
    ) -> PageRows[Run]:
        if wanted.is_by_time:
            return self._list_by_time(wanted, after or _start(wanted), limit, skip)
        session, before = self._session, after[0] if after else _EVER
        where: dict[str, Any] = {"before": before, "limit": limit + 1, "skip": skip}
        edge: Row | None = None
        if wanted.task_id is None:
            found = (
                session.all("task_lists.find_runs", **where)
                if wanted.status is None
                else session.all("task_lists.find_runs_of_status", status=wanted.status, **where)
            )
        elif not _is_sifted(wanted):
            found = session.all("task_lists.find_of_task", task_id=wanted.task_id, **where)
        else:
            task_id, sieve = wanted.task_id, _sieve(wanted)
            found, edge = look_through(
                lambda look: session.filtered(
                    "task_lists.find_in_task", sieve, task_id=task_id, look=look, **where
                ),
                lambda look: session.one(
                    "task_lists.edge_in_task", task_id=task_id, before=before, look=look
                ),
                limit + 1,
                LOOK_UP,
            )
        return self._read(found, limit, edge, is_by_time=False)

    def count(self, wanted: RunFilter) -> Total:
        if wanted.is_by_time:
            at, before = _start(wanted)
            span = {"since": _since(wanted), "at": at, "before": before}
            if wanted.status is None:
                return self._count_so_far("task_lists.count_in_time", span)
            return self._count_among(
                "task_lists.count_status_in_time",
                "task_lists.edge_in_time",
                {"status": wanted.status},
                span,
            )
        if wanted.task_id is None:
            counts = self._counts.read(KIND)
            count = sum(counts.values()) if wanted.status is None else counts.get(wanted.status, 0)
            return Total(count, is_exact=True)
        span = {"task_id": wanted.task_id, "before": _EVER}
        if not _is_sifted(wanted):
            return self._count_so_far("task_lists.count_of_task", span)
        return self._count_among(
            "task_lists.count_in_task", "task_lists.edge_in_task", _sieve(wanted), span
        )

    def _list_by_time(
        self, wanted: RunFilter, after: Place, limit: int, skip: int
    ) -> PageRows[Run]:
        session = self._session
        span: dict[str, Any] = {"since": _since(wanted), "at": after[0], "before": after[1]}
        page = {"limit": limit + 1, "skip": skip}
        edge: Row | None = None
        if wanted.status is None:
            found = session.all("task_lists.find_in_time", **page, **span)
        else:
            status = wanted.status
            found, edge = look_through(
                lambda look: session.all(
                    "task_lists.find_status_in_time", status=status, look=look, **page, **span
                ),
                lambda look: session.one("task_lists.edge_in_time", look=look, **span),
                limit + 1,
                LOOK_UP,
            )
        return self._read(found, limit, edge, is_by_time=True)

    def _read(
        self, found: list[Row], limit: int, edge: Row | None, *, is_by_time: bool
    ) -> PageRows[Run]:
        statement = "task_lists.read_runs_by_time" if is_by_time else "task_lists.read_runs"
        ids = [row[-1] for row in found[:limit]]
        rows: PageRows[Row] = PageRows()
        if ids:
            rows = _fit(self._session.paged(statement, {}, MAX_PAGE_BYTES, ids=ids))
        runs = PageRows(read_run(row) for row in rows)
        if rows.is_cut or len(found) > limit:
            last = runs[-1]
            runs.next_place = (last.scheduled_time, last.id) if is_by_time else (last.id,)
        elif edge is not None:  # the edge itself is to be looked at next
            runs.next_place = (*edge[:-1], edge[-1] + 1)
        return runs

    def _count_so_far(self, statement: str, span: dict[str, Any]) -> Total:
        row = self._session.one(statement, look=COUNT_LIMIT + 1, **span)
        count = int(row[0]) if row else 0
        return Total(min(count, COUNT_LIMIT), is_exact=count <= COUNT_LIMIT)

    def _count_among(
        self, statement: str, edge: str, sieve: dict[str, Any], span: dict[str, Any]
    ) -> Total:
        looked = {"look": LOOK_UP, **span}
        if statement == "task_lists.count_status_in_time":
            rows = self._session.all(statement, **sieve, **looked)
        else:
            rows = self._session.filtered(statement, sieve, **looked)
        return Total(int(rows[0][0]), is_exact=self._session.one(edge, **looked) is None)


def _fit(rows: PageRows[Row]) -> PageRows[Row]:
    """As many of them as a page has room for when their attempts are shown; the first at least."""
    if sum([len(row[_ATTEMPTS] or "") for row in rows]) < _FEW_ATTEMPTS:
        return rows
    left = MAX_PAGE_BYTES
    for place, row in enumerate(rows):
        left -= MOST_GROWTH * len(row[_ATTEMPTS] or "")
        left -= sum([len(value.encode()) for value in row if isinstance(value, str)])
        if left < 0 and place:
            fitting = PageRows(rows[:place])
            fitting.is_cut = True
            return fitting
    return rows


def _start(wanted: RunFilter) -> tuple[Instant, int]:
    """The place before the first run of a span: the last instant in it, and any id."""
    return (_EVER if wanted.until is None else wanted.until - 1), _EVER


def _since(wanted: RunFilter) -> Instant:
    return -_EVER if wanted.since is None else wanted.since


def _is_sifted(wanted: RunFilter) -> bool:
    return any(value is not None for value in _sieve(wanted).values())


def _sieve(wanted: RunFilter) -> dict[str, Any]:
    """What is compared run by run."""
    return {"status": wanted.status, "since": wanted.since, "until": wanted.until}
