"""The classes of jobs as an instance remembers them, and which of them a claim's filter accepts."""

from typing import Final

from ksana.base.instant import MINUTE, Instant, Micros
from ksana.domain.queue.classes import JobClass, Wants, accepts
from ksana.ports.queue.tables import QueueTx

FILTERS: Final = 512
"""Filters whose classes are remembered."""

KNOWN_FOR: Final[Micros] = 10 * MINUTE
"""A worker that has not asked for so long is not counted on any more."""


class _Filter:
    """The classes that a filter accepts, of which state of the classes, when it was last asked
    with, whether it found jobs then, and whether it got none of some for lack of units."""

    __slots__ = ("class_ids", "has_found", "is_short", "mark", "seen_at")

    def __init__(self, class_ids: tuple[int, ...], mark: tuple[int, int]) -> None:
        self.class_ids = class_ids
        self.mark = mark
        self.seen_at: Instant = 0
        self.has_found = False
        self.is_short = False


class JobClassCache:
    """Every class, remembered until one is added, and which of them a filter accepts. Shared by the
    writers of a process."""

    def __init__(self) -> None:
        self._mark: tuple[int, int] = (-1, 0)
        self.classes: tuple[JobClass, ...] = ()
        self._filters: dict[Wants, _Filter] = {}
        self.committed: set[int] = set()
        """Classes known to be in the store for good."""

    def filters_since(self, since: Instant) -> list[Wants]:
        """The filters that claims on this instance came with, up to so many."""
        return [wants for wants, one in list(self._filters.items()) if one.seen_at >= since]

    def choose(self, tx: QueueTx, wants: Wants, mark: tuple[int, int]) -> tuple[int, ...]:
        """The classes a worker takes jobs from. `mark` changes when a class is added."""
        if mark != self._mark:
            self.classes = tuple(tx.job_classes.list_classes())
            self._mark = mark
        found = self._filters.get(wants)
        if found is None or found.mark != mark:
            class_ids = tuple(kind.id for kind in self.classes if accepts(kind, wants))
            if len(self._filters) >= FILTERS:
                self._filters.clear()
            found = self._filters[wants] = _Filter(class_ids, mark)
        found.seen_at = tx.now
        return found.class_ids

    def expect(self, wants: Wants, must_have_found: bool) -> tuple[int, ...] | None:
        """The classes a worker takes jobs from, as last known, if it is worth asking for jobs at
        once: with `must_have_found` only if there were some the last time. Not while units are
        short: jobs that are held and not taken are hidden from others. None: look first."""
        found = self._filters.get(wants)
        if found is None or found.mark != self._mark:
            return None
        if not found.has_found and (must_have_found or found.is_short):
            return None
        return found.class_ids

    def note_found(self, wants: Wants, has_found: bool, is_short: bool = False) -> None:
        """Whether there were jobs this time, and whether units were short."""
        found = self._filters.get(wants)
        if found is not None:
            found.has_found, found.is_short = has_found, is_short
