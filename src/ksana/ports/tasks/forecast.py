"""What a store answers for a forecast: which tasks fire, and how long their runs took."""

from typing import Protocol

from ksana.base.instant import Micros
from ksana.domain.tasks.forecast import ArmedTask
from ksana.ports.tasks.tables import TasksTx


class ArmedTasks(Protocol):
    """The tasks that fire, without what is large in them."""

    def list_armed(self, after: int, limit: int) -> tuple[list[ArmedTask], int | None]:
        """The armed ones among the next `limit` tasks after an id, by id, and the last id that was
        looked at; None if there are no more."""
        ...

    def list_durations(self, task_id: int, limit: int) -> list[Micros]:
        """How long the newest runs of a task took that have ended, among its newest `limit`."""
        ...


class ForecastTx(TasksTx, Protocol):
    """A transaction that can be asked for a forecast."""

    @property
    def armed_tasks(self) -> ArmedTasks: ...
