"""Two real instances over one database and Redis: what happens on one wakes who waits on the other,
and everything stays right when Redis dies.

In the first test the polls under the signals are made so slow that only a signal can be in time.
The second takes the program as it is, and its figures: the time from the answer of a submit on one
instance to the answer of a claim that waits on the other.
"""

import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ground.child import wait_for
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program, run_cli
from tests.ground.redis import Redis
from tests.ground.tasks import note_figures

SLOW_POLLS = """
import ksana.engine.core.long_poll as long_poll
import ksana.engine.governance.sweep as sweep
import ksana.service.core.keys as keys
long_poll.LOOK_EVERY = long_poll.HEARD_LOOK_EVERY = 60_000_000
sweep.POLL = 60_000_000
keys.REFRESH_US = keys.STALE_US = 60_000_000
from ksana.cli.main import run
run()
"""
ROUNDS = int(os.environ.get("KSANA_SIGNAL_ROUNDS", "5"))
WAIT_SEC = 20
SOON_S = 5.0

Json = dict[str, Any]


@pytest.fixture(params=["mariadb", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database that several instances share."""
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


class Pair:
    """Two instances on one database."""

    def __init__(self, folder: Path, store: str, coordination: str, *args: str) -> None:
        env = {"KSANA_COORDINATION": coordination}
        command = (sys.executable, *args) if args else (sys.executable, "-m", "ksana", "serve")
        self.store = store
        self.a = Program(folder / "a", store=store, env=env, command=command)
        self.b = Program(folder / "b", store=store, env=env, command=command)

    def __enter__(self) -> "Pair":
        self.a.start()
        self.b.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.a.close()
        self.b.close()

    def wake(self, wait: Callable[[], Any], act: Callable[[], Any]) -> tuple[Any, float]:
        """Have somebody wait, then do something; answer what came, and how long after."""
        came: list[tuple[Any, float]] = []
        waiter = threading.Thread(target=lambda: came.append((wait(), time.monotonic())))
        waiter.start()
        time.sleep(0.3)  # the waiter has found nothing and parked
        act()
        done = time.monotonic()
        waiter.join(WAIT_SEC + 20)
        assert came, "nobody answered the one who waited"
        return came[0][0], came[0][1] - done

    def claim(self) -> Json | None:
        body = {"worker_id": "w", "wait_sec": WAIT_SEC}
        answer = self.b.post("/api/scheduler/jobs/claim", body, timeout=WAIT_SEC + 10)
        return dict(answer.json()["job"]) if answer.status_code == 200 else None

    def submit(self) -> None:
        body = {"addon_id": "a", "job_type": "t", "cost_units": 1}
        answer = self.a.post("/api/scheduler/jobs/submit", body)
        assert answer.status_code == 201, answer.text

    def pull(self) -> list[Json]:
        body = {"worker_id": "g", "limit": 1, "wait_sec": WAIT_SEC}
        answer = self.b.post("/scheduler/jobs/pull", body, timeout=WAIT_SEC + 10)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["jobs"])

    def enqueue(self, number: int, **members: Any) -> None:
        body = {
            "object_type": "memory",
            "object_id": f"m{number}",
            "action": "decay",
            "run_at": "2026-01-01T00:00:00Z",
            "allow_past": True,
            **members,
        }
        answer = self.a.post("/scheduler/jobs", body)
        assert answer.status_code == 201, answer.text


@pytest.mark.spec("X3", "X4")
def test_postgresql_itself_wakes_who_waits_on_the_other_instance_and_its_loss_loses_nothing(
    tmp_path: Path, postgres: Postgres
) -> None:
    name = postgres.create_database()
    url = postgres.url(name)
    with Pair(tmp_path, url, "memory", "-c", SLOW_POLLS, "serve") as pair:
        wait_for(lambda: count_listeners(postgres, name) == 2, "both listen", within_s=60)
        job, took = pair.wake(pair.claim, pair.submit)
        assert job is not None
        assert took < SOON_S
    with Pair(tmp_path, url, "memory") as pair:
        wait_for(lambda: count_listeners(postgres, name) == 2, "both listen", within_s=60)
        ended = 0
        for _ in range(3):  # whether they are back by then or not: the polls are the net
            ended += count_listeners(postgres, name, "pg_terminate_backend(pid)")
            job, took = pair.wake(pair.claim, pair.submit)
            assert job is not None
            assert took < SOON_S
        assert ended >= 2
    postgres.drop_database(name)


def count_listeners(server: Postgres, name: str, each: str = "pid") -> int:
    """How many connections listen for signals; `each` is done to each of them."""
    with (
        contextlib.closing(server.connect(name)) as connection,
        contextlib.closing(connection.cursor()) as cursor,
    ):
        cursor.execute(
            f"SELECT {each} FROM pg_stat_activity WHERE application_name = 'ksana signals'"
            " AND datname = current_database() AND query LIKE 'LISTEN%'"
        )
        return len(cursor.fetchall())


def set_gate(program: Program, state: str) -> None:
    answer = program.request("PUT", "/scheduler/gates/persona", json={"state": state})
    assert answer.status_code == 200, answer.text


@pytest.mark.spec("X3", "X4", "X19")
def test_a_signal_wakes_who_waits_on_the_other_instance(
    tmp_path: Path, shared_url: str, redis: Redis
) -> None:
    with Pair(tmp_path, shared_url, redis.url(), "-c", SLOW_POLLS, "serve") as pair:
        wait_for(lambda: redis_hears(redis, 2), "both listen", within_s=60)
        job, took = pair.wake(pair.claim, pair.submit)
        assert job is not None
        assert took < SOON_S

        jobs, took = pair.wake(pair.pull, lambda: pair.enqueue(1))
        assert len(jobs) == 1
        assert took < SOON_S

        risky = {"status": "candidate", "risk_tier": "high"}
        pair.a.request("PUT", "/scheduler/objects/memory/m2", json=risky)
        set_gate(pair.a, "closed")
        pair.enqueue(2)
        jobs, took = pair.wake(pair.pull, lambda: set_gate(pair.a, "open"))
        assert [job["object_id"] for job in jobs] == ["m2"]
        assert took < SOON_S

        key = make_key(tmp_path, pair, redis)
        header = {"X-API-Key": key}
        wait_for(
            lambda: (
                pair.b.get("/api/v1/tasks", headers=header).status_code == 200
                and pair.b.get("/api/v1/tasks").status_code == 401
            ),
            "the key is known",
            within_s=SOON_S,
        )
        code, text = cli(tmp_path, pair, redis, "key", "revoke", key)
        assert code == 0, text
        wait_for(
            lambda: pair.b.get("/api/v1/tasks", headers=header).status_code == 401,
            "the key is refused",
            within_s=SOON_S,
        )


def redis_hears(redis: Redis, count: int) -> bool:
    with redis.connect() as client:
        (entry,) = client.pubsub_numsub("ksana:v1:signals")
        return int(entry[1]) >= count


def cli(tmp_path: Path, pair: Pair, redis: Redis, *args: str) -> tuple[int, str]:
    env = {"KSANA_STORE": pair.store, "KSANA_COORDINATION": redis.url()}
    return run_cli(*args, env=env, cwd=tmp_path)


def make_key(tmp_path: Path, pair: Pair, redis: Redis) -> str:
    code, text = cli(tmp_path, pair, redis, "key", "create", "--name", "k", "--scope", "*:admin")
    assert code == 0, text
    return next(line for line in text.split() if line.startswith("ksana_"))


class Rounds:
    """Claims that wait on one instance for a submit on the other, and how long each took."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.took: dict[str, list[float]] = {}

    def run(self, pair: Pair, name: str) -> None:
        for _ in range(self._count):
            job, took = pair.wake(pair.claim, pair.submit)
            assert job is not None
            assert took < SOON_S
            self.took.setdefault(name, []).append(took * 1000)

    def run_with_redis(self, pair: Pair, redis: Redis) -> None:
        """With Redis, after it was killed, and when it is back."""
        wait_for(lambda: redis_hears(redis, 2), "both listen", within_s=60)
        self.run(pair, "with Redis")
        redis.kill()
        self.run(pair, "Redis killed")
        for program in (pair.a, pair.b):
            began = time.monotonic()
            assert program.get("/api/v1/tasks").status_code == 200
            assert time.monotonic() - began < 2
        redis.heal()
        wait_for(lambda: redis_hears(redis, 2), "both listen again", within_s=30)
        self.run(pair, "Redis back")


@pytest.mark.spec("X3", "X4")
def test_after_the_death_of_redis_everything_is_still_right(
    tmp_path: Path, postgres: Postgres, redis: Redis
) -> None:
    name = postgres.create_database()
    with Pair(tmp_path, postgres.url(name), redis.url()) as pair:
        Rounds(1).run_with_redis(pair, redis)
    postgres.drop_database(name)


@pytest.mark.slow
@pytest.mark.spec("X3", "X4")
def test_how_long_it_takes_to_wake_with_and_without_redis(
    tmp_path: Path, shared_url: str, redis: Redis
) -> None:
    rounds = Rounds(ROUNDS)
    with Pair(tmp_path / "memory", shared_url, "memory") as pair:
        rounds.run(pair, "without")
    with Pair(tmp_path / "redis", shared_url, redis.url()) as pair:
        rounds.run_with_redis(pair, redis)
    middle = {name: f"{statistics.median(took):.1f} ms" for name, took in rounds.took.items()}
    note_figures("submit on one instance to claim on the other, median", str(middle))
