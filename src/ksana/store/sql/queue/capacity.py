"""The one row of capacity in SQL, and what the active leases hold of it."""

from typing import Any

from ksana.domain.queue.admission import Capacity
from ksana.store.sql.core.session import Row, Session


class SqlCapacity:
    """`queue_capacity`."""

    flush_order = -1  # the capacity before the counts

    def __init__(self, session: Session, _: Any) -> None:
        self._session = session
        self._freed = (0, 0)

    def lock(self, total: int) -> Capacity:
        self.flush()
        return capacity_of(total, self._session.one("queue.lock_capacity"))

    def read(self, total: int) -> Capacity:
        return capacity_of(total, self._session.one("queue.get_capacity"))

    def write(self, capacity: Capacity) -> None:
        self._session.run_later(
            "queue.set_capacity",
            used=capacity.used,
            active=capacity.active,
            reserved_units=capacity.reserved_units,
            reserved_for=capacity.reserved_for,
            reserved_urgency=capacity.reserved_urgency,
            reserved_until=capacity.reserved_until,
        )

    def free(self, units: int, leases: int) -> None:
        self._session.wrote = True
        self._freed = self._freed[0] + units, self._freed[1] + leases

    def flush(self) -> None:
        """Give back what was gathered: at the end, because from here on others wait for us."""
        units, leases = self._freed
        if leases:
            self._freed = (0, 0)
            self._session.run_later("queue.free_capacity", units=units, leases=leases)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._freed = (0, 0)

    def drop_reserve(self, job_id: str) -> None:
        self._session.run_later("queue.drop_reserve", job_id=job_id)

    def sum_of_addon(self, addon_id: str) -> int:
        row = self._session.one("queue.sum_active_of_addon", addon_id=addon_id)
        return 0 if row is None else int(row[0])

    def sum_active(self) -> tuple[int, int]:
        row = self._session.one("queue.sum_active")
        assert row is not None
        return int(row[0]), int(row[1])


def capacity_of(total: int, row: Row | None) -> Capacity:
    """The capacity by its row."""
    assert row is not None, "the capacity row is missing: the migration writes it"
    return Capacity(total, *row)
