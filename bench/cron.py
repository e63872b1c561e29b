"""Next slots per second of ten expressions, beside cronsim in the same run. Prints one JSON line
each and the worst ratio.

`next` asks `next_after` of a schedule, as the firing loop does; `fresh` reads the expression anew
each time. cronsim is measured twice: iterating (its cheapest use, which `ratio` is held against)
and asked for the slot after a given instant, for which it must read the expression again. Goal:
every ratio at least 5. `* * * * * *` is shown but not judged: there cronsim only adds a second to a
datetime.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim

from ksana.base.instant import to_instant
from ksana.domain import cron, schedule

CASES = [
    ("* * * * *", "UTC"),
    ("*/5 * * * *", "UTC"),
    ("*/10 * * * * *", "UTC"),
    ("0 9 * * 1-5", "America/New_York"),
    ("30 2 * * *", "Europe/Berlin"),
    ("*/15 * * * *", "Australia/Lord_Howe"),
    ("0 0 L * *", "UTC"),
    ("0 0 29 2 *", "UTC"),
    ("0 0 13 * 5", "Asia/Shanghai"),
    ("0 12 * * MON#2", "America/Santiago"),
]
NOT_JUDGED = [("* * * * * *", "UTC")]
START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
ROUNDS, ROUND_SECONDS, STEPS = 5, 0.12, 50


def per_second(walk: Callable[[], None], steps: int) -> float:
    """Walks per CPU second times the steps of one walk, the best of a few rounds: neighbours only
    ever slow a round down."""
    rates = []
    for _ in range(ROUNDS):
        walks, begun = 0, time.process_time()
        while time.process_time() - begun < ROUND_SECONDS:
            walk()
            walks += 1
        rates.append(walks * steps / (time.process_time() - begun))
    return max(rates)


def measure(expr: str, zone: str) -> dict[str, object]:
    steps = 5 if "29 2" in expr else STEPS
    wanted = schedule.make_cron(expr, zone)
    start = to_instant(START)
    local_start = START.astimezone(ZoneInfo(zone)) if zone != "UTC" else START

    def ours() -> None:
        at = start
        for _ in range(steps):
            at = schedule.next_after(wanted, at) or 0

    def theirs() -> None:
        slots = CronSim(expr, local_start)
        for _ in range(steps):
            next(slots)

    def theirs_asked() -> None:
        next(CronSim(expr, local_start))

    def fresh() -> None:
        cron.parse_cron.cache_clear()
        cron.parse_cron(expr).next_local(start // 1_000_000)

    mine, other = per_second(ours, steps), per_second(theirs, steps)
    return {
        "expr": expr,
        "zone": zone,
        "next_per_s": round(mine),
        "fresh_per_s": round(per_second(fresh, 1)),
        "cronsim_per_s": round(other),
        "ratio": round(mine / other, 1),
        "asked_ratio": round(mine / per_second(theirs_asked, 1), 1),
    }


def main() -> int:
    worst = float("inf")
    for case in CASES + NOT_JUDGED:
        row = measure(*case)
        if case not in NOT_JUDGED:
            worst = min(worst, float(str(row["ratio"])))
        print(json.dumps(row), flush=True)
    print(json.dumps({"worst_ratio": worst, "goal": 5}))
    return 0 if worst >= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
