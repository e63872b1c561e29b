"""Turns: the order in which ready jobs of one priority are served. Pure: the numbers come from the
store, what follows from them is decided here."""

from collections.abc import Mapping
from typing import Final, Protocol

TAIL: Final = -1
"""Stands for the turn of the last that waits, which the store finds as it enters a job: see
`JobTable.insert`. No job in the store has it."""


class TurnNumbers(Protocol):
    """What waits now, as the store counts it. None: nothing does."""

    def head_turn(self, urgency: int) -> int | None:
        """The least turn that waits at this urgency."""
        ...

    def tail_turn(self, urgency: int) -> int | None:
        """The greatest turn that waits at this urgency."""
        ...

    def key_turn(self, urgency: int, fairness_key: str) -> int | None:
        """The greatest turn that waits at this urgency under a fairness key."""
        ...


def next_turn(has_key: bool, head: int | None, tail: int | None, key_tail: int | None) -> int:
    """Give a job that becomes ready its turn: the least turn is served first, and then age decides.

    Jobs without a fairness key go to the tail, so among themselves they are served by age. A job
    with a key comes one turn after the last waiting job of its key, or at the head if its key has
    none waiting: keys are served in rotation, however many jobs one of them has. Nothing is stored
    per key; what waits is all there is to know.
    """
    if not has_key:
        return tail or 0
    return (head or 0) if key_tail is None else max(head or 0, key_tail + 1)


class TurnGiver(Protocol):
    """Gives jobs that become ready their turns."""

    def give(self, urgency: int, fairness_key: str | None) -> int:
        """The turn of one more job."""
        ...


class AtTail:
    """The turn of a job without a key that comes alone."""

    def give(self, urgency: int, fairness_key: str | None) -> int:
        """The tail, wherever that is by then."""
        return TAIL


AT_TAIL: Final = AtTail()


class Turns:
    """Turns for the jobs that become ready in one transaction. Each number is asked for once and
    carried on, so that a job counts for those after it."""

    def __init__(
        self,
        numbers: TurnNumbers,
        tails: Mapping[int, int | None] = {},
        heads: Mapping[int, int | None] = {},
        key_tails: Mapping[tuple[int, str | None], int | None] = {},
    ) -> None:
        """Numbers that are known already: the greatest and the least turns by urgency, and the
        greatest by urgency and fairness key."""
        self._numbers = numbers
        self._heads = dict(heads)
        self._tails = dict(tails)
        self._key_tails: dict[tuple[int, str | None], int | None] = dict(key_tails)

    def give(self, urgency: int, fairness_key: str | None) -> int:
        """The turn of one more job."""
        tails = self._tails
        tail = tails.get(urgency)
        if tail is None and urgency not in tails:
            tail = tails[urgency] = self._numbers.tail_turn(urgency)
        if fairness_key is None:
            if tail is not None:
                return tail  # nothing has moved
            turn = next_turn(False, None, tail, None)
        else:
            head, place = self._head(urgency), (urgency, fairness_key)
            if place not in self._key_tails:
                self._key_tails[place] = self._numbers.key_turn(urgency, fairness_key)
            turn = next_turn(True, head, tail, self._key_tails[place])
            self._key_tails[place] = turn
            if head is None:
                self._heads[urgency] = turn
        tails[urgency] = turn if tail is None else max(tail, turn)
        return turn

    def front(self, urgency: int) -> int:
        """The turn of a job that comes back: before all that wait, by its age."""
        return self._head(urgency) or 0

    def _head(self, urgency: int) -> int | None:
        if urgency not in self._heads:
            self._heads[urgency] = self._numbers.head_turn(urgency)
        return self._heads[urgency]
