"""Decisions at their bounds: admission of runs, misfires, marks of nodes, events in the log."""

import pytest

from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.events import EventKind
from ksana.domain.explain import span_words
from ksana.domain.nodes.storm import StormLimits, judge_mark
from ksana.domain.tasks.firing import Counts, admit, is_misfire


@pytest.mark.spec("C4", "C11")
@pytest.mark.parametrize(
    ("policy", "active", "waiting", "wanted"),
    [
        ("PARALLEL", 99, 99, ("start", "PARALLEL")),
        ("QUEUE", 1, 0, ("start", "BELOW_LIMIT")),
        ("QUEUE", 2, 0, ("wait", "QUEUED_BEHIND_ACTIVE")),
        ("QUEUE", 0, 1, ("wait", "QUEUED_BEHIND_ACTIVE")),
        ("QUEUE", 2, 2, ("wait", "QUEUED_BEHIND_ACTIVE")),
        ("QUEUE", 2, 3, ("skip", "QUEUE_FULL")),
        ("QUEUE", 0, 3, ("skip", "QUEUE_FULL")),
        ("SKIP", 1, 0, ("start", "BELOW_LIMIT")),
        ("SKIP", 1, 5, ("start", "BELOW_LIMIT")),
        ("SKIP", 2, 0, ("skip", "CONCURRENCY_LIMIT")),
        ("SKIP", 2, 5, ("skip", "CONCURRENCY_LIMIT")),
    ],
)
def test_one_more_run_starts_waits_or_is_skipped(
    policy: str, active: int, waiting: int, wanted: tuple[str, str]
) -> None:
    assert admit(policy, 2, 3, Counts(active, waiting)) == wanted


@pytest.mark.spec("C10")
@pytest.mark.parametrize(
    ("due_at", "outages", "wanted"),
    [
        (90, [], False),  # late by the grace
        (89, [], True),
        (95, [(80, 94), (96, 99)], False),
        (95, [(80, 85), (90, 95)], True),
        (95, [(95, 99)], False),  # due when the outage began: somebody was there
        (95, [(94, 95)], True),
        (100, [], False),
    ],
)
def test_a_slot_is_a_misfire_beyond_its_grace_or_in_an_outage(
    due_at: int, outages: list[tuple[int, int]], wanted: bool
) -> None:
    assert is_misfire(due_at, 100, 10, outages) is wanted


@pytest.mark.spec("N11")
@pytest.mark.parametrize(
    ("marked_at", "marks", "wanted"),
    [
        (None, [], "marked"),
        (96, [], "debounced"),
        (95, [], "marked"),
        (None, [91, 100], "limited"),
        (None, [90, 100], "marked"),  # one has left the window
        (96, [91, 100], "debounced"),
    ],
)
def test_a_mark_is_kept_debounced_or_too_many(
    marked_at: int | None, marks: list[int], wanted: str
) -> None:
    limits = StormLimits(away_us=60, debounce_us=5, most=2, window_us=10)
    assert judge_mark(limits, 100, marked_at, marks) == wanted


def test_an_event_is_logged_by_its_level_and_what_its_data_holds() -> None:
    silent = EventKind("TASK", "A", "")
    assert not silent.is_logged("{}")
    always = EventKind("TASK", "B", "", log="info")
    assert always.is_logged("{}") is True
    chosen = EventKind("TASK", "C", "", log="info", log_if='"a":1', log_unless='"b":1')
    assert chosen.is_logged('{"a":1}')
    assert not chosen.is_logged('{"a":2}')
    assert not chosen.is_logged('{"a":1,"b":1}')


def test_an_event_may_alert_if_it_is_said_to() -> None:
    assert EventKind("TASK", "A", "", members=("alert",)).may_alert is True
    assert EventKind("TASK", "A", "", optional=("alert",)).may_alert is True
    assert EventKind("TASK", "A", "", members=("x",), optional=("y",)).may_alert is False


def test_a_span_is_said_with_no_more_digits_than_matter() -> None:
    assert span_words(10 * SECOND + 900 * MILLISECOND) == "10s"
    assert span_words(10 * SECOND) == "10s"
    assert span_words(10 * SECOND - 1) == "9.999s"
    assert span_words(1500 * MILLISECOND + 7) == "1.5s"
    assert span_words(0) == span_words(-5 * SECOND) == "0s"
