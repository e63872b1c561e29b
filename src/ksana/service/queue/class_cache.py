"""The classes of jobs as an instance remembers them: those that claims choose from, which of them a
filter accepts, and those that submits need not enter again."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, Instant, Micros
from ksana.domain.queue.admission import STARVED
from ksana.domain.queue.classes import KEPT, KEPT_AFTER, TRUSTED, JobClass, Wants, accepts
from ksana.domain.queue.jobs import NewJob
from ksana.ports.queue.tables import QueueTx

FILTERS: Final = 512
"""Filters whose classes are remembered."""

FILTERED: Final = 200_000
"""Ids of classes that are remembered for all filters together."""

KNOWN_FOR: Final[Micros] = 10 * MINUTE
"""A worker that has not asked for so long is not counted on any more."""

READ_WHOLE: Final[Micros] = 5 * MINUTE
"""How often all classes are read, and those forgotten that went. In between only what was entered
of late is: a class without jobs costs a claim little."""

READ_BACK: Final[Micros] = 2 * MINUTE
"""What was entered so long before the last reading is read again: it may have been committed
after."""

MOST_TRUSTED: Final = 20_000


class _Filter:
    """The classes that a filter accepts, of which reading of the classes, when it was last asked
    with, whether it found jobs then, and whether it got none of some for lack of units, and since
    when."""

    __slots__ = ("class_ids", "classes", "has_found", "is_short", "seen_at", "short_since")

    def __init__(self, class_ids: tuple[int, ...], classes: tuple[JobClass, ...]) -> None:
        self.class_ids = class_ids
        self.classes = classes
        self.seen_at: Instant = 0
        self.has_found = False
        self.is_short = False
        self.short_since: Instant = 0


class KnownClasses(msgspec.Struct, frozen=True, eq=False):
    """The classes as they were read. Replaced as a whole: writers of several threads share them."""

    mark: int = -1
    read_at: Instant = 0
    whole_at: Instant = 0
    by_id: dict[int, JobClass] = {}
    classes: tuple[JobClass, ...] = ()


class JobClassCache:
    """The classes, remembered until one is entered, and which of them a filter accepts. Shared by
    the writers of a process."""

    def __init__(self) -> None:
        self.known = KnownClasses()
        self._filters: dict[Wants, _Filter] = {}
        self._filtered = 0

    def filters_since(self, since: Instant) -> list[Wants]:
        """The filters that claims on this instance came with, up to so many."""
        return [wants for wants, one in list(self._filters.items()) if one.seen_at >= since]

    def choose(self, tx: QueueTx, wants: Wants, mark: int) -> tuple[int, ...]:
        """The classes a worker takes jobs from. `mark` changes when classes are entered."""
        known, now = self.known, tx.now
        if mark != known.mark or not 0 <= now - known.whole_at < READ_WHOLE:
            known = self.known = _read(tx, known, mark)
        found = self._filters.get(wants)
        if found is None or found.classes is not known.classes:
            found = self._remember(wants, known.classes, found)
        found.seen_at = now
        return found.class_ids

    def _remember(
        self, wants: Wants, classes: tuple[JobClass, ...], before: _Filter | None
    ) -> _Filter:
        class_ids = tuple(kind.id for kind in classes if accepts(kind, wants))
        self._filtered += len(class_ids) - (0 if before is None else len(before.class_ids))
        if len(self._filters) >= FILTERS or self._filtered > FILTERED:
            self._filters.clear()
            self._filtered = len(class_ids)
        found = self._filters[wants] = _Filter(class_ids, classes)
        return found

    def expect(self, wants: Wants, must_have_found: bool) -> tuple[int, ...] | None:
        """The classes a worker takes jobs from, as last known, if it is worth asking for jobs at
        once: with `must_have_found` only if there were some the last time. Not while units are
        short: jobs that are held and not taken are hidden from others. None: look first."""
        found = self._filters.get(wants)
        if found is None or found.classes is not self.known.classes:
            return None
        if not found.has_found and (must_have_found or found.is_short):
            return None
        return found.class_ids

    def note_found(
        self, wants: Wants, has_found: bool, is_short: bool = False, now: Instant = 0
    ) -> None:
        """Whether there were jobs this time, and whether units were short."""
        found = self._filters.get(wants)
        if found is not None:
            is_new = has_found or not (is_short and found.is_short and not found.has_found)
            found.has_found, found.is_short = has_found, is_short
            if is_new:
                found.short_since = now

    def is_starved(self, wants: Wants, now: Instant) -> bool:
        """Whether such claims lacked units for so long that one of them looks past a full capacity:
        the first of its jobs then keeps units. Asked once for each set of them: the next is in a
        while."""
        found = self._filters.get(wants)
        if found is None or found.has_found or not found.is_short:
            return False
        if 0 <= now - found.short_since < STARVED:
            return False
        found.short_since = now
        return True


def _read(tx: QueueTx, known: KnownClasses, mark: int) -> KnownClasses:
    """Read what was entered since the last reading; all, if that was never done or long ago."""
    now = tx.now
    if not 0 <= now - known.whole_at < READ_WHOLE:
        classes = tuple(tx.job_classes.list_classes())
        return KnownClasses(mark, now, now, {kind.id: kind for kind in classes}, classes)
    # Whoever entered a class lets it stay for a while from then on.
    entered = tx.job_classes.list_classes(known.read_at + KEPT - READ_BACK)
    new = {kind.id: kind for kind in entered if kind.id not in known.by_id}
    if not new:
        return msgspec.structs.replace(known, mark=mark, read_at=now)
    classes = (*known.classes, *new.values())
    return KnownClasses(mark, now, known.whole_at, known.by_id | new, classes)


class _Trust(NamedTuple):
    """Until when an instance relies on a class that it entered, and for jobs due up to when."""

    until_boot: Micros
    due_until: Instant


class TrustedClasses:
    """The classes that this instance entered a short while ago: jobs of them are submitted without
    entering them again. By a clock that runs on while the machine sleeps. Should a class have gone
    all the same, `engine.queue.chores` enters it again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offered: dict[int, _Trust] = {}
        self._trusted: dict[int, _Trust] = {}

    def choose_new(self, jobs: Sequence[NewJob]) -> list[JobClass]:
        """The classes of jobs that are to be entered with them."""
        boot = self._clock.boottime()
        new: dict[int, JobClass] = {}
        due: dict[int, Instant] = {}
        for job in jobs:
            kind, run_at = job.job_class, job.run_at or 0
            trust = self._trusted.get(kind.id)
            if trust is None or trust.until_boot <= boot or trust.due_until < run_at:
                new[kind.id] = kind
                due[kind.id] = max(run_at, due.get(kind.id, 0))
        if len(self._offered) + len(due) > MOST_TRUSTED:
            self._offered.clear()
        for class_id, run_at in due.items():
            self._offered[class_id] = _Trust(boot + TRUSTED, run_at + KEPT_AFTER - KEPT)
        return list(new.values())

    def note_committed(self, class_ids: Sequence[int]) -> None:
        """Jobs of these classes were submitted, and it is committed."""
        if len(self._trusted) + len(class_ids) > MOST_TRUSTED:
            self._trusted.clear()
        for class_id in class_ids:
            offered = self._offered.pop(class_id, None)
            if offered is not None:
                self._trusted[class_id] = offered
