"""The real server, looked at from outside: CPU and memory from /proc, runs from its SQLite file,
opened read-only."""

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.ground.process import Program

from bench.figure import BenchError
from bench.ground import cores
from bench.http_layer import cpu_seconds
from ksana.base.instant import Instant, parse_instant
from ksana.domain.tasks.call_records import read_attempts

LOOK_EVERY_SEC = 0.01


class Served:
    """A running server and its store."""

    def __init__(self, program: Program, file: Path, started_sec: float) -> None:
        self.program = program
        self.file = file
        self.started_sec = started_sec
        """From the start of the process until /readyz answered."""

    @property
    def port(self) -> int:
        return self.program.port

    def cpu(self) -> float:
        """CPU seconds used so far, all threads."""
        return cpu_seconds(self.program.pid)

    def rss_mb(self) -> tuple[float, float]:
        """Resident memory, and how much of it is not a mapped file, in MB."""
        lines = Path(f"/proc/{self.program.pid}/status").read_text().splitlines()
        kb = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in lines)
            if name in ("VmRSS", "RssAnon")
        }
        return kb["VmRSS"] * 1024 / 1e6, kb["RssAnon"] * 1024 / 1e6

    def idle_percent(self, seconds: float) -> float:
        """CPU used while nothing is asked of it, in percent of one core."""
        before, began = self.cpu(), time.perf_counter()
        time.sleep(seconds)
        return (self.cpu() - before) / (time.perf_counter() - began) * 100

    def metric(self, name: str) -> float:
        """The value of one sample without labels."""
        for line in self.program.client.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise BenchError(f"/metrics has no {name}")

    def wait_until_recorded(self, slot_at: Instant, within_sec: float) -> float:
        """Look until all that was due by then is fired and ended, by what the store has committed;
        the wall time of that."""
        give_up_at = time.time() + within_sec
        with closing(self._connect()) as connection:
            while True:
                # Two looks: no run can be missed between them, for a task is disarmed in the
                # transaction that writes its run.
                armed = connection.execute(
                    "SELECT COUNT(*) FROM tasks WHERE fire_at <= ?", (slot_at,)
                ).fetchone()[0]
                unfinished = connection.execute(
                    "SELECT COUNT(*) FROM task_runs WHERE open_task IS NOT NULL"
                ).fetchone()[0]
                seen_at = time.time()
                if not armed and not unfinished:
                    return seen_at
                if seen_at > give_up_at:
                    raise BenchError(
                        f"{armed} tasks not fired and {unfinished} runs not ended "
                        f"after {within_sec:.0f} s"
                    )
                time.sleep(LOOK_EVERY_SEC)

    def runs(self, since: Instant) -> list["Ran"]:
        """All runs of slots from then on."""
        with closing(self._connect()) as connection:
            return list(map(read_ran, connection.execute(select_ran(since)).fetchall()))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{self.file}?mode=ro", uri=True, isolation_level=None, timeout=30
        )


class Ran(msgspec.Struct, frozen=True):
    """One run: the slot, when it was started, when its request was first sent, when it was
    answered."""

    slot_at: Instant
    started_at: Instant | None
    ended_at: Instant | None
    status: str
    response_code: int | None
    sent_at: Instant | None

    @property
    def is_answered(self) -> bool:
        return self.status == "SUCCESS" and self.response_code == 200


def select_ran(since: Instant) -> str:
    """The statement that reads runs of slots from then on, on any store."""
    return (
        "SELECT scheduled_time, start_time, end_time, status, response_code, attempts"
        f" FROM task_runs WHERE scheduled_time >= {since}"
    )


def read_ran(row: Sequence[Any]) -> Ran:
    """One of its rows."""
    slot_at, started_at, ended_at, status, code, attempts = row
    kept = read_attempts(attempts) if attempts else []
    sent_at = parse_instant(kept[0]["started_at"]) if kept else None
    return Ran(slot_at, started_at, ended_at, status, code, sent_at)


@contextmanager
def serve(
    folder: Path,
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    on: frozenset[int] = cores.FIRST,
) -> Iterator[Served]:
    """`ksana serve` on a SQLite file, pinned; ready when this is entered."""
    file = file or folder / "ksana.db"
    with Program(folder, store=f"sqlite:///{file}", env=env) as program:
        with cores.on(on):
            began = time.perf_counter()
            program.start(within_s=120)
            started_sec = time.perf_counter() - began
        yield Served(program, file, started_sec)
        program.terminate()
