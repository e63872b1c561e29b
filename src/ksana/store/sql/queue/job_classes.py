"""Classes of queue jobs in SQL: entered once, and read whole."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ksana.domain.queue.classes import JobClass
from ksana.store.sql.core.session import Session

_decode_needs = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlJobClasses:
    """`job_classes`."""

    def __init__(self, session: Session, _: Any) -> None:
        self._session = session

    def enter(self, classes: Sequence[JobClass]) -> None:
        columns = ("id", "addon_id", "job_type", "cost_units", "needs_json")
        rows = [
            (
                kind.id,
                kind.addon_id,
                kind.job_type,
                kind.cost_units,
                msgspec.json.encode(kind.needs).decode(),
            )
            for kind in sorted(classes, key=lambda one: one.id)
        ]
        self._session.run_rows_later("queue.enter_class", columns, rows)

    def list_classes(self) -> list[JobClass]:
        return [
            JobClass(row[0], row[1], row[2], row[3], _decode_needs(row[4]))
            for row in self._session.all("queue.list_classes")
        ]
