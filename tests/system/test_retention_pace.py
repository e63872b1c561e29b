"""With the shortest retention a server under load removes as much as comes: rows and the file's
size settle, and firing does not wait for it. The twin on the virtual clock is in
`tests/engine/test_retention.py`.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program, run_cli
from tests.ground.storms import Punctuality
from tests.ground.target import Target
from tests.ground.tasks import SECOND, instant_of, list_events, make_task, note_figures

TASKS, EVERY_S = 40, 0.25
KEEP_S = 60
SETTLED_S = 150.0
"""The first rows are old after a minute, the loop looks within another, and works off two minutes'
worth."""
BACKLOG = 120_000
WATCHED_S = 60.0


@pytest.mark.fault("F34")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.spec("X13", "C22")
def test_a_server_under_load_with_a_short_retention_stops_growing(
    tmp_path: Path, target: Target
) -> None:
    with Program(tmp_path, env={"KSANA_RETENTION": "1m"}) as program:
        program.start()
        for n in range(TASKS):
            make_task(
                program, f"t{n}", target.url("/x"), f"{EVERY_S}s", concurrency_policy="PARALLEL"
            )
        time.sleep(SETTLED_S)  # the load is the fact here
        began = len(target.requests())
        sizes, runs, events = [], [], []
        with closing(sqlite3.connect(f"file:{tmp_path}/ksana.db?mode=ro", uri=True)) as db:
            until = time.monotonic() + WATCHED_S
            while time.monotonic() < until:
                sizes.append((tmp_path / "ksana.db").stat().st_size)
                runs.append(db.execute("SELECT COUNT(*) FROM task_runs").fetchone()[0])
                events.append(db.execute("SELECT COUNT(*) FROM event_packs").fetchone()[0])
                time.sleep(2)
        sent = target.requests()[began:]
        late_ms = sorted(
            (one.at - instant_of(one.headers["x-ksana-scheduled-at"])) / 1000 for one in sent
        )
        p99 = late_ms[len(late_ms) * 99 // 100]
        per_minute = len(sent) / WATCHED_S * KEEP_S
        note_figures(
            "retention of one minute",
            f"{len(sent) / WATCHED_S:.0f} runs/s, {min(runs)}–{max(runs)} runs and "
            f"{min(events)}–{max(events)} events kept, file {max(sizes) / 1e6:.1f} MB, "
            f"p99 of firing {p99:.0f} ms",
        )
        assert max(sizes) == min(sizes), "the file grows on"
        assert p99 <= 100, p99
        assert per_minute * 0.9 <= min(runs) and max(runs) <= per_minute * 1.25
        assert max(events) <= min(events) * 1.25
        assert not list_events(program, "TASK_MISFIRED")


@pytest.mark.spec("X13")
@pytest.mark.fault("F34")
def test_removing_a_backlog_does_not_move_the_punctuality_of_firing(
    tmp_path: Path, target: Target
) -> None:
    with Program(tmp_path, env={"KSANA_RETENTION": "1h", "KSANA_LOG_LEVEL": "error"}) as program:
        assert run_cli("migrate", env=program.env, cwd=tmp_path)[0] == 0
        with closing(sqlite3.connect(tmp_path / "ksana.db")) as db:
            _add_old_events(db)
            program.start()
            timers = Punctuality(program, target, timers=20, every="200ms")
            before = _count_old(db)
            with timers.watch() as firings:
                wait_for(
                    lambda: _count_old(db) == 0,
                    "the backlog is removed",
                    within_s=90,
                    every_s=0.5,
                )
            with timers.watch() as quiet:
                timers.wait_for_more(200)
        assert before > BACKLOG // 2, "it was removed before anything was watched"
        note_figures(
            f"{before} old events removed while tasks fire",
            f"p99 {firings.p(99):.0f} ms, {quiet.p(99):.0f} ms without",
        )
        assert len(firings.late_ms) > 100
        # The last hundredth is what else the machine does.
        assert firings.p(95) <= 60 + 2 * quiet.p(95), (firings.p(95), quiet.p(95))


def _add_old_events(db: sqlite3.Connection) -> None:
    day_ago = (time.time_ns() // 1000) - 24 * 3600 * SECOND
    data = f'{{"noise":"{"x" * 150}"}}'
    rows = ((day_ago + n, "TASK", str(n), "TASK_CREATED", data) for n in range(BACKLOG))
    db.executemany(
        "INSERT INTO event_packs (ts, entity_type, entity_id, event_type, data_json)"
        " VALUES (?, ?, ?, ?, ?)",
        rows,
    )
    db.commit()


def _count_old(db: sqlite3.Connection) -> int:
    """How many are left, by the ends of the index: nothing is walked through."""
    first = db.execute("SELECT MIN(id) FROM event_packs").fetchone()[0]
    return max(0, BACKLOG + 1 - int(first))
