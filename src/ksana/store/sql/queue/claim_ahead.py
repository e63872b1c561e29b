"""What a claim opens with, over a network in one answer: its outlook, the next jobs, held, and the
units that are set aside. A claim that comes with a release is expected: then that is asked together
with the leases that end, and a round trip is saved."""

from collections.abc import Sequence
from typing import Final

from ksana.base.instant import Instant
from ksana.domain.queue.jobs import ReadyJob
from ksana.store.sql.core.session import Question, Row, Session

_POOL: Final = 3
"""From here on an outlook has the pool."""


class ClaimAhead:
    """The questions of one claim, and their answers once they were asked."""

    def __init__(self, class_id: int | None, limit: int, now: Instant, *, with_units: bool) -> None:
        self._key = class_id, limit, now, with_units
        self.with_units = with_units
        self.is_asked = False
        self.outlook: Row = ()
        self.allotments: list[Row] = []
        self.taken: list[ReadyJob] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClaimAhead) and self._key == other._key

    __hash__ = None  # type: ignore[assignment]

    @property
    def pool(self) -> Row:
        """The pool's row."""
        return self.outlook[_POOL:]

    def ask(self, session: Session, first: Sequence[Question] = ()) -> list[list[Row]]:
        """Ask, and before it other questions; answer their rows."""
        class_id, limit, now, with_units = self._key
        take: Question = ("queue.take_ready", {"limit": limit})
        if class_id is not None:
            take = ("queue.take_class", {"class_id": class_id, "limit": limit})
        questions: list[Question] = [*first, ("queue.claim_outlook", {"now_at": now})]
        if with_units:
            questions.append(("queue.list_allotments", {}))
        self.taken, answers = session.ask_as(ReadyJob, take, questions)
        [self.outlook], *rest = answers[len(first) :]
        if with_units:
            (self.allotments,) = rest
        self.is_asked = True
        return answers[: len(first)]
