"""Pages of queue jobs: numbers from an index first, then the rows."""

from typing import Any, Final

import msgspec

from ksana.base.instant import SECOND, Instant
from ksana.domain.queue.jobs import PRIORITIES, Job
from ksana.ports.pages import COUNT_LIMIT, LOOK_THROUGH, LOOK_UP, MAX_PAGE_BYTES, PageRows, Total
from ksana.ports.queue.tables import JobFilter
from ksana.store.sql.core.looking import Looked, look_through
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.core.walks import find_last_at

_EVER: Final = 1 << 62
"""Beyond every number."""

HELD_STATES: Final = ("CLAIMED", "PREPARING", "LEASE_PENDING", "RUNNING")
"""The states of jobs that a worker holds."""

OUT_OF_ORDER: Final = 3 * SECOND
"""How far a job's time may lie from its neighbours': it is taken when a transaction begins, the
number when the job is written, and transactions end in another order."""


class SqlJobLists:
    """The lists of queue jobs of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._jobs = tx.jobs
        session.avoid_sorts()

    def list_page(self, wanted: JobFilter, before: int | None, limit: int) -> PageRows[Job]:
        session: Session = self._jobs.session
        filters = msgspec.structs.asdict(wanted)
        statement = _find_statement(filters)
        if statement is not None:
            given = {name: value for name, value in filters.items() if value is not None}
            found = session.all(statement, before=before or _EVER, limit=limit + 1, **given)
            edge = None
        else:
            found, edge = self._look(session, wanted, filters, before, limit + 1)
        seqs = [row[0] for row in found[:limit]]
        rows = (
            session.paged("queue.list_jobs", {}, MAX_PAGE_BYTES, seqs=seqs) if seqs else PageRows()
        )
        jobs = PageRows(Job(*row) for row in rows)
        if rows.is_cut or len(found) > limit:
            jobs.next_place = (jobs[-1].seq,)
        elif edge is not None:  # the edge itself is to be looked at next
            jobs.next_place = (edge[0] + 1,)
        return jobs

    def count_depth(self) -> dict[str, list[Total]]:
        ready = [
            ("job_lists.count_ready_of", {"urgency": urgency, "limit": COUNT_LIMIT + 1})
            for urgency in range(len(PRIORITIES))
        ]
        bounds = {"before": _EVER, "limit": LOOK_UP + 1}
        rest = [
            ("job_lists.count_scheduled", {"limit": LOOK_UP + 1}),
            *(("job_lists.count_of_state", {"state": state, **bounds}) for state in HELD_STATES),
        ]
        answers = self._jobs.session.ask([*ready, *rest])
        counts = [int(rows[0][0]) for rows in answers[: len(ready)]]
        depth = {"READY": [Total(min(n, COUNT_LIMIT), n <= COUNT_LIMIT) for n in counts]}
        for name, rows in zip(("SCHEDULED", *HELD_STATES), answers[len(ready) :], strict=True):
            total, *of_urgency = map(int, rows[0])
            depth[name] = [Total(count, total <= LOOK_UP) for count in of_urgency]
        return depth

    def _look(
        self,
        session: Session,
        wanted: JobFilter,
        filters: dict[str, Any],
        before: int | None,
        limit: int,
    ) -> Looked:
        base, bound = _choose_base(filters)
        floor, top = _find_span(session, wanted)
        span = {**bound, "floor": floor, "before": top if before is None else min(before, top)}

        def find(look: int) -> list[Row]:
            return session.filtered(
                f"job_lists.find_{base}", filters, limit=limit, look=look, **span
            )

        def find_edge(look: int) -> Row | None:
            return session.one(f"job_lists.edge_{base}", look=look, **span)

        most = LOOK_UP if bound else LOOK_THROUGH
        return look_through(find, find_edge, limit, most)


def _find_statement(filters: dict[str, Any]) -> str | None:
    """The statement for which one index has the filters and the order, if there is one."""
    given = tuple(name for name, value in filters.items() if value is not None)
    return {
        (): "job_lists.find_all",
        ("state",): "job_lists.find_of_state",
        ("addon_id",): "job_lists.find_of_addon",
    }.get(given)


def _choose_base(filters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The index to look through, and what it is asked for, which is then no filter any more."""
    for name, base in (("state", "in_state"), ("addon_id", "in_addon")):
        value = filters[name]
        if value is not None:
            filters[name] = None
            return base, {name: value}
    return "among_all", {}


def _find_span(session: Session, wanted: JobFilter) -> tuple[int, int]:
    """The numbers, from and before, that jobs submitted between two instants can have."""

    def find(at: Instant) -> int:
        return find_last_at(session, "job_lists.job_span", "job_lists.job_from", at)

    after, before = wanted.created_after, wanted.created_before
    return (
        0 if after is None else find(after - OUT_OF_ORDER) + 1,
        _EVER if before is None else find(before + OUT_OF_ORDER) + 1,
    )
