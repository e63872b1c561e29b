"""Random expressions: none crashes, none is slow, and the answers agree with each other.
KSANA_FULL=1 tries 100,000."""

import gc
import os
import random
import time

import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, SECOND, parse_instant
from ksana.domain import preview, schedule, schedule_words

TRIES = 100_000 if os.environ.get("KSANA_FULL") else 5_000
SLOWEST_SECONDS = 0.05
T0 = parse_instant("2026-01-01T00:00:00Z")
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Asia/Shanghai",
    "Africa/Casablanca",
    "+05:45",
]
RANGES = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
NOISE = "0123456789*,-/?LW#@ \tabcMONJAN\x00٣é"


def random_item(chance: random.Random, low: int, high: int) -> str:
    first, last = sorted((chance.randint(low, high), chance.randint(low, high)))
    step = chance.randint(1, high)
    return chance.choice(
        [
            "*",
            f"*/{step}",
            str(first),
            f"{first}-{last}",
            f"{first}-{last}/{step}",
            f"{first}/{step}",
        ]
    )


def random_field(chance: random.Random, index: int) -> str:
    low, high = RANGES[index]
    if chance.random() < 0.35:
        return "*"
    if index == 3 and chance.random() < 0.3:
        return chance.choice(["L", "LW", "?", f"{chance.randint(1, 31)}W"])
    if index == 5 and chance.random() < 0.4:
        return chance.choice(
            [
                "?",
                "MON-FRI",
                f"{chance.randint(0, 7)}#{chance.randint(1, 5)}",
                f"{chance.randint(0, 7)}L",
            ]
        )
    return ",".join(random_item(chance, low, high) for _ in range(chance.choice([1, 1, 1, 2, 4])))


def random_expression(chance: random.Random) -> str:
    fields = [random_field(chance, index) for index in range(6)][chance.randint(0, 1) :]
    text = " ".join(fields)
    if chance.random() < 0.25:
        at = chance.randrange(len(text) + 1)
        text = (
            text[:at]
            + "".join(chance.choices(NOISE, k=chance.randint(1, 3)))
            + text[at + chance.randint(0, 2) :]
        )
    return text


def ask(
    expr: str, zone: str, after: int
) -> tuple[float, schedule.Cron | None, int | None, int | None]:
    """Read the expression and find two slots; tell the CPU time it took. The garbage collector
    waits meanwhile: its passes over the whole heap (seen: 60 ms and more) fall on any expression at
    random and are no cost of that expression."""
    gc.disable()
    begun = time.thread_time()
    try:
        wanted = schedule.make_cron(expr, zone)
        first = schedule.next_after(wanted, after)
        second = None if first is None else schedule.next_after(wanted, first)
        return time.thread_time() - begun, wanted, first, second
    except InvalidError:
        return time.thread_time() - begun, None, None, None
    finally:
        gc.enable()


@pytest.mark.fault("F04")
@pytest.mark.spec("C7", "C9", "C10")
@pytest.mark.timeout(3600)
def test_no_random_expression_crashes_or_is_slow_and_all_answers_agree() -> None:
    chance = random.Random(20260101)
    slowest, read = (0.0, ""), 0
    for _ in range(TRIES):
        expr, zone = random_expression(chance), chance.choice(ZONES)
        after = T0 + chance.randrange(0, 3000 * DAY)
        taken, wanted, first, second = ask(expr, zone, after)
        slowest = max(slowest, (taken, expr))
        if wanted is None:
            continue
        read += 1
        assert first is not None and first > after, expr
        assert second is not None and second > first, expr
        assert schedule.latest_at_or_before(wanted, second) == second, expr
        assert schedule.latest_at_or_before(wanted, second - 1) == first, expr
        assert schedule.count_between(wanted, after, first - 1) == 0, expr
        assert schedule.count_between(wanted, after, second) == 2, expr
        assert schedule.latest_n(wanted, second + SECOND - 1, 2, after) == [first, second], expr
        assert wanted == schedule.make_cron(wanted.expr, zone), expr
        assert schedule_words.describe(wanted)
        assert preview.preview(wanted, after, 1)[0].at == first, expr
    assert read > TRIES // 2
    assert slowest[0] < SLOWEST_SECONDS, slowest
