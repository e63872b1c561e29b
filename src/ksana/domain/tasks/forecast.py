"""How many firings are to come, by span of time and by target host. Pure.

A schedule with few slots in the window is walked, one with many is counted span by span: a task
that fires every second costs as many steps as there are spans, however long they are.
"""

from collections.abc import Iterable
from operator import add, sub
from typing import Final, NamedTuple

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Cron, Every, Schedule

MAX_HOSTS: Final = 10_000
"""Hosts that are counted apart; firings of others are counted in all only."""
MAX_WALK: Final = 10_000
"""Slots of one task that are walked: of one that may run so often and no more."""
HEAVIEST: Final = 50
"""Tasks that are named: those that fire most."""
MAX_KNOWN: Final = 5_000
"""Cron schedules whose counts are kept while tasks are counted."""
SAMPLED: Final = 3
"""Tasks of a host whose runs are looked at for how long they take."""


class ArmedTask(NamedTuple):
    """A task that fires, as far as a forecast needs it."""

    id: int
    job_id: str
    name: str
    schedule: Schedule
    host: str
    next_slot_at: Instant
    runs_left: int | None
    """None: as many as there are slots."""


class Buckets(NamedTuple):
    """Equal spans of time, one after the other."""

    since: Instant
    width: Micros
    number: int

    @property
    def until(self) -> Instant:
        return self.since + self.width * self.number


class HeavyTask(NamedTuple):
    """A task and how often it fires in the window."""

    firings: int
    task: ArmedTask


class HostLoad(msgspec.Struct):
    """The firings at one host."""

    counts: list[int]
    firings: int = 0
    heaviest: list[HeavyTask] = []
    """The tasks that fire most there, the first first."""


class Load(msgspec.Struct):
    """The firings of many tasks."""

    counts: list[int]
    hosts: dict[str, HostLoad] = {}
    tasks: int = 0
    firings: int = 0
    elsewhere: int = 0
    """Firings at hosts that are not counted apart."""
    heaviest: list[HeavyTask] = []


def count_slots(task: ArmedTask, spans: Buckets) -> list[int]:
    """The firings in each span, jitter left aside. Empty: it does not fire in any."""
    chosen = task.schedule
    after = max(spans.since, task.next_slot_at) - 1
    last = spans.until - 1
    total = schedules.count_between(chosen, after, last) if after < last else 0
    if task.runs_left is not None:
        total = min(total, task.runs_left)
    if not total:
        return []
    if total <= spans.number or task.runs_left is not None:
        return _walk(chosen, after, spans, min(total, MAX_WALK))
    if type(chosen) is Every and chosen.end_at is None:
        return _count_even(chosen, after, spans)
    return _count_each(chosen, after, spans)


def _walk(chosen: Schedule, after: Instant, spans: Buckets, most: int) -> list[int]:
    found = [0] * spans.number
    since, width, until = spans.since, spans.width, spans.until
    for _ in range(most):
        slot = schedules.next_after(chosen, after)
        if slot is None or slot >= until:
            break
        found[(slot - since) // width] += 1
        after = slot
    return found


def _count_even(chosen: Every, after: Instant, spans: Buckets) -> list[int]:
    """An interval: the numbers of its slots at the ends of spans, one taken from the next."""
    anchor, every, since, width = chosen.anchor_at, chosen.every_us, spans.since, spans.width
    before = schedules.next_after(chosen, after)
    assert before is not None
    at = (before - since) // width
    ends = range(since + (at + 1) * width - 1 - anchor, spans.until - anchor, width)
    numbers = [end // every for end in ends]
    first = numbers[0] - (before - anchor) // every + 1
    return [*([0] * at), first, *map(sub, numbers[1:], numbers)]


def _count_each(chosen: Schedule, after: Instant, spans: Buckets) -> list[int]:
    found = []
    for at in range(spans.number):
        end = spans.since + (at + 1) * spans.width - 1
        found.append(schedules.count_between(chosen, after, end) if end > after else 0)
        after = max(after, end)
    return found


Memo = dict[tuple[str, str, object, object], list[int]]
"""What was counted of cron schedules: many tasks share one."""


def add_up(
    tasks: Iterable[ArmedTask], spans: Buckets, host: str | None = None, memo: Memo | None = None
) -> Load:
    """The firings of some tasks, of one host or of all."""
    load = Load([0] * spans.number)
    known: Memo = {} if memo is None else memo
    for task in tasks:
        if host is not None and task.host != host:
            continue
        chosen = task.schedule
        if type(chosen) is Cron and task.runs_left is None and chosen.start_at is chosen.end_at:
            key = (chosen.expr, chosen.timezone, chosen.dst_gap, chosen.dst_overlap)
            found = known.get(key)
            if found is None:
                found = count_slots(task, spans)
                if len(known) < MAX_KNOWN:
                    known[key] = found
        else:
            found = count_slots(task, spans)
        _add(load, task, found)
    for there in load.hosts.values():
        load.counts = list(map(add, load.counts, there.counts))
    return load


def _add(load: Load, task: ArmedTask, found: list[int]) -> None:
    """Add a task's firings to its host's; only those of hosts that are not told apart to all."""
    load.tasks += 1
    firings = sum(found)
    if not firings:
        return
    load.firings += firings
    heavy = HeavyTask(firings, task)
    load.heaviest = _keep(load.heaviest, heavy, HEAVIEST)
    there = load.hosts.get(task.host)
    if there is None and len(load.hosts) >= MAX_HOSTS:
        load.elsewhere += firings
        load.counts = list(map(add, load.counts, found))
        return
    if there is None:
        there = load.hosts[task.host] = HostLoad([0] * len(found))
    there.counts = list(map(add, there.counts, found))
    there.firings += firings
    there.heaviest = _keep(there.heaviest, heavy, SAMPLED)


def _keep(heaviest: list[HeavyTask], heavy: HeavyTask, most: int) -> list[HeavyTask]:
    if len(heaviest) >= most and heaviest[-1].firings >= heavy.firings:
        return heaviest
    kept = sorted([*heaviest, heavy], key=lambda one: (-one.firings, one.task.id))
    return kept[:most]


def join(one: Load, other: Load) -> Load:
    """Both together. The first may be changed by it."""
    one.counts = list(map(add, one.counts, other.counts))
    one.tasks += other.tasks
    one.firings += other.firings
    one.elsewhere += other.elsewhere
    for heavy in other.heaviest:
        one.heaviest = _keep(one.heaviest, heavy, HEAVIEST)
    for host, load in other.hosts.items():
        held = one.hosts.get(host)
        if held is None and len(one.hosts) >= MAX_HOSTS:
            one.elsewhere += load.firings
        elif held is None:
            one.hosts[host] = load
        else:
            held.counts = list(map(add, held.counts, load.counts))
            held.firings += load.firings
            for heavy in load.heaviest:
                held.heaviest = _keep(held.heaviest, heavy, SAMPLED)
    return one
