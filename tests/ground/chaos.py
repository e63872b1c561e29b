"""Faults of every kind, one after the other by a seed, on a running fleet; and writers that note
what was acknowledged to them.

Each fault is a plain function that does its harm and heals it again; what comes of it is judged at
the end, by set arithmetic over what was acknowledged, fired and delivered.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.ground.child import wait_for
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.proxy import FaultProxy
from tests.ground.tasks import Json
from tests.store.disk import fill

Fault = Callable[[random.Random], None]


class Fleet(NamedTuple):
    """Instances over one store, each with a way to it that can be cut, and what may be done to
    them."""

    programs: list[Program]
    faults: dict[str, Fault]

    def heal(self) -> None:
        for program in self.programs:
            if not program.is_running:
                program.start()
            program.resume()
            program.wait_until("/readyz", within_s=60)


def kill(programs: list[Program]) -> Fault:
    def harm(dice: random.Random) -> None:
        program = dice.choice(programs)
        program.kill9()
        time.sleep(dice.uniform(0, 1.5))
        program.start(until="/health")

    return harm


def restart(programs: list[Program]) -> Fault:
    def harm(dice: random.Random) -> None:
        program = dice.choice(programs)
        program.terminate(within_s=60)
        program.start(until="/health")

    return harm


def freeze(programs: list[Program], longest_s: float) -> Fault:
    def harm(dice: random.Random) -> None:
        program = dice.choice(programs)
        program.pause()
        time.sleep(dice.uniform(0.2, longest_s))
        program.resume()

    return harm


def cut(proxies: list[FaultProxy]) -> Fault:
    def harm(dice: random.Random) -> None:
        for _ in range(3):
            dice.choice(proxies).cut()
            time.sleep(0.1)

    return harm


def silence(proxies: list[FaultProxy]) -> Fault:
    def harm(dice: random.Random) -> None:
        proxy = dice.choice(proxies)
        proxy.blackhole()
        time.sleep(dice.uniform(0.5, 4))
        proxy.heal()

    return harm


def lose_commits(proxies: list[FaultProxy]) -> Fault:
    def harm(dice: random.Random) -> None:
        proxy = dice.choice(proxies)
        make = dice.choice((proxy.lose_reply_to, proxy.cut_before))
        trap = make(b"COMMIT", times=5)
        wait_for(lambda: trap.count >= 1, "a COMMIT comes by", within_s=20)
        time.sleep(dice.uniform(0, 1))
        proxy.heal()

    return harm


def crash_database(server: MariaDB | Postgres) -> Fault:
    def harm(dice: random.Random) -> None:
        server.kill()
        time.sleep(dice.uniform(0, 2))
        server.start()

    return harm


def fill_disk(disk: Path) -> Fault:
    def harm(dice: random.Random) -> None:
        ballast = fill(disk)
        time.sleep(dice.uniform(0.5, 3))
        ballast.unlink()

    return harm


@contextmanager
def make_fleet(folder: Path, url: str, server: MariaDB | Postgres | None) -> Iterator[Fleet]:
    """One instance on a file, two on a database server."""
    with ExitStack() as stack:
        if server is None:
            programs = [stack.enter_context(Program(folder / "data", store=url))]
            faults = {
                "kill -9": kill(programs),
                "restart": restart(programs),
                "freeze": freeze(programs, 3),
            }
        else:
            proxies = [stack.enter_context(FaultProxy(server.host, server.port)) for _ in range(2)]
            programs = [
                stack.enter_context(Program(folder / f"i{n}", store=proxy.url(url)))
                for n, proxy in enumerate(proxies)
            ]
            faults = {
                "kill -9": kill(programs),
                "restart": restart(programs),
                "freeze": freeze(programs, 18),
                "connections cut": cut(proxies),
                "network silent": silence(proxies),
                "COMMIT lost": lose_commits(proxies),
                "database killed": crash_database(server),
            }
        for program in programs:
            program.start()
        yield Fleet(programs, faults)


class Writer:
    """Creates tasks, triggers runs and submits jobs, all the time, and keeps what was acknowledged.
    An answer that did not come, or a 503, promises nothing."""

    def __init__(self, programs: list[Program], target_url: str, *, has_queue: bool) -> None:
        self._programs = programs
        self._url = target_url
        self._has_queue = has_queue
        self.tasks: dict[int, str] = {}
        self.runs: set[str] = set()
        self.jobs: set[str] = set()
        self.refused = 0
        self.surprises: list[str] = []
        """Answers that neither acknowledge nor refuse in good order."""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the writer waits for an answer without end"

    @property
    def acknowledged(self) -> int:
        return len(self.tasks) + len(self.runs) + len(self.jobs)

    def _write(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            program = self._programs[number % len(self._programs)]
            try:
                with httpx.Client(base_url=program.url(), timeout=3, trust_env=False) as client:
                    self._write_once(client, number)
            except httpx.HTTPError:
                self.refused += 1
            except Exception as error:
                self.surprises.append(repr(error))
            self._ends.wait(0.03)

    def _write_once(self, client: httpx.Client, number: int) -> None:
        name = f"written-{number}"
        body = {
            "name": name,
            "target_url": self._url,
            "cron_expr": "0 0 1 1 *",
            "retry_policy": {"max_retries": 5, "initial_delay": 0.2},
        }
        made = self._post(client, "/api/v1/tasks", body, 201)
        if made is not None:
            self.tasks[made["id"]] = name
            run = self._post(client, f"/api/v1/tasks/{made['id']}/trigger", None, 202)
            if run is not None:
                self.runs.add(run["uid"])
        if self._has_queue:
            job = self._post(
                client,
                "/api/scheduler/jobs/submit",
                {"addon_id": "a", "job_type": "t", "cost_units": 1},
                201,
            )
            if job is not None:
                self.jobs.add(job["job"]["job_id"])

    def _post(self, client: httpx.Client, path: str, body: object, wanted: int) -> Json | None:
        answer = client.post(path, json=body)
        if answer.status_code == wanted:
            made: Json = answer.json()
            return made
        if answer.status_code not in (409, 429, 503):
            self.surprises.append(f"{path}: {answer.status_code} {answer.text[:500]}")
        self.refused += 1
        return None
