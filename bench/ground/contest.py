"""Other products and ours as programs that do the same: what each stands on, and how one is run and
read.

A program is called with an action and its options as JSON, and tells its figures as JSON lines. The
programs lie in `bench/peers`; what they need is installed into the folder named by
KSANA_BENCH_PEERS on first use.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.ground.process import Program
from tests.ground.server import MissingServerError, Server

from bench.figure import BenchError
from bench.ground import databases, disk

HERE = Path(__file__).parents[1] / "peers"
FOLDER = "KSANA_BENCH_PEERS"
NODE_PACKAGES = ("graphile-worker@0.17", "croner", "bullmq", "ioredis", "undici")
PYTHON_PACKAGES = ("pgqueuer", "asyncpg", "apscheduler>=3,<4", "aiohttp")
WITHIN_SEC = 240
SETTINGS = {"KSANA_CAPACITY_TOTAL": "100000", "LOG_LEVEL": "warning"}


class SkippedError(Exception):
    """This one cannot be measured here, and why."""


class Ground(NamedTuple):
    """What a system under test stands on while it is measured."""

    stores: list[str]
    """Where each worker connects to, in turn."""
    database_pids: list[int]
    """The database's processes, whose CPU is counted with that of their children."""
    instance_pids: list[int]
    """Those of the servers between workers and database, if there are any."""
    name: str = "peer"
    database: Any = None


class System(NamedTuple):
    """One product in one setting."""

    name: str
    command: Callable[[], list[str]]
    ground: Callable[[], "contextlib.AbstractContextManager[Ground]"]
    workers: int = 1
    kept: str = "every commit synced"


# ------------------------------------------------------------------------------ what they stand on


class Servers:
    """The database servers of a contest, each started when first needed and kept until the end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._started: dict[str, Any] = {}
        self._numbers = iter(range(1, 1_000_000))

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, kind: str) -> Any:
        """The server of a kind."""
        if kind not in self._started:
            start: Any = getattr(databases, kind)
            try:
                self._started[kind] = self._stack.enter_context(start())
            except MissingServerError as error:
                raise SkippedError(str(error)) from None
        return self._started[kind]

    @contextlib.contextmanager
    def empty(self, kind: str) -> Iterator[tuple[Server, str, str]]:
        """An empty database of that kind: its server, its name and its URL."""
        server = self.get(kind)
        name = server.create_database()
        try:
            yield server, name, server.url(name)
        finally:
            if kind == "mariadb":
                server.drop_database(name)
            else:
                with server.connect() as connection:
                    connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    @contextlib.contextmanager
    def on_postgres(self) -> Iterator[Ground]:
        """For a peer that connects to PostgreSQL itself."""
        with self.empty("postgres") as (server, name, url):
            yield Ground([url], [server.pid], [], name)

    @contextlib.contextmanager
    def on_redis(self) -> Iterator[Ground]:
        """For a peer that connects to Redis itself."""
        server = self.get("redis")
        yield Ground([server.url()], [server.pid], [], f"peer-{next(self._numbers)}")

    @contextlib.contextmanager
    def ksana(
        self, kind: str, instances: int, env: dict[str, str] | None = None
    ) -> Iterator[Ground]:
        """Ours on a store of that kind."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(disk.folder())
            database_pids: list[int] = []
            pids: list[int] = []
            database: Any
            if kind == "sqlite":
                url = f"sqlite:///{folder / 'ksana.db'}"
                database = SqliteFile(folder / "ksana.db")
            else:
                server, name, url = stack.enter_context(self.empty(kind))
                database_pids.append(server.pid)
                database = Network(server, name)
            urls = []
            for number in range(instances):
                settings = {**SETTINGS, **(env or {})}
                program = stack.enter_context(
                    Program(folder / f"i{number}", store=url, env=settings)
                )
                program.start(within_s=120)
                stack.callback(program.terminate)
                pids.append(program.pid)
                urls.append(program.url())
            if kind == "sqlite":
                disk.check_synced(folder / "ksana.db")
            yield Ground(urls, database_pids, pids, database=database)


class SqliteFile:
    """Questions to the file of a running server."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def one(self, statement: str) -> Any:
        return self.all(statement)[0]

    def all(self, statement: str) -> list[Any]:
        import sqlite3

        uri = f"file:{self._file}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
            return connection.execute(statement).fetchall()


class Network:
    """Questions to a database server."""

    def __init__(self, server: Any, name: str) -> None:
        self._server, self._name = server, name

    def one(self, statement: str) -> Any:
        return self.all(statement)[0]

    def all(self, statement: str) -> list[Any]:
        connection = self._server.connect(self._name)
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


# ------------------------------------------------------------------------------ how one is run


def python_peer(script: str) -> list[str]:
    """The command of a peer written in Python."""
    folder = peers_folder()
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        must([sys.executable, "-m", "venv", str(folder / "venv")])
        must([str(python), "-m", "pip", "install", "--quiet", *PYTHON_PACKAGES])
    return [str(python), str(HERE / script)]


def node_peer(script: str) -> list[str]:
    """The command of a peer written for Node."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise SkippedError("node is not installed")
    modules = peers_folder() / "node"
    if not (modules / "node_modules" / "undici").exists():
        modules.mkdir(parents=True, exist_ok=True)
        must([npm, "install", "--no-audit", "--no-fund", "--prefix", str(modules), *NODE_PACKAGES])
    return [node, str(HERE / script)]


def our_program() -> list[str]:
    """The command of our own workers."""
    return [sys.executable, str(HERE / "ksana_jobs.py")]


def peers_folder() -> Path:
    folder = os.environ.get(FOLDER)
    if not folder:
        raise SkippedError(f"set {FOLDER} to a folder where peers may be installed")
    return Path(folder)


def must(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise SkippedError(f"{' '.join(command[:4])} failed: {lines[-1][:200]}")


def environment(ground: Ground, worker: int, **more: str) -> dict[str, str]:
    folder = os.environ.get(FOLDER, "")
    return {
        **os.environ,
        "PEER_STORE": ground.stores[worker % len(ground.stores)] if ground.stores else "",
        "PEER_NAME": ground.name,
        "NODE_PATH": f"{folder}/node/node_modules",
        "PYTHONPATH": str(HERE),
        **more,
    }


def ask(command: list[str], action: str, options: dict[str, Any], env: dict[str, str]) -> Any:
    """Run one action to its end; the last line it told."""
    done = subprocess.run(
        [*command, action, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=WITHIN_SEC,
        check=False,
        env=env,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not told:
        lines = done.stderr.strip().splitlines() or ["it told nothing"]
        raise BenchError(f"{action} failed: {lines[-1][:300]}")
    return json.loads(told[-1])


class Worker:
    """A worker that runs until it is killed, and the last it told."""

    def __init__(
        self, command: list[str], action: str, options: dict[str, Any], env: dict[str, str]
    ) -> None:
        self.process = subprocess.Popen(
            [*command, action, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.told: dict[str, Any] = {}
        self._rest = b""

    def read(self) -> None:
        assert self.process.stdout is not None
        data = self.process.stdout.read()
        if data == b"" and self.process.poll() is not None:
            raise BenchError(f"a worker ended with {self.process.returncode}")
        *lines, self._rest = (self._rest + (data or b"")).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                self.told |= json.loads(line)

    def kill(self) -> None:
        """With its children: it has a session of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def workers(
    system: System, ground: Ground, action: str, options: dict[str, Any]
) -> Iterator[list[Worker]]:
    """So many workers of a system, killed afterwards."""
    command = system.command()
    running = [
        Worker(command, action, options, environment(ground, number))
        for number in range(system.workers)
    ]
    try:
        yield running
    finally:
        for worker in running:
            worker.kill()


def wait_for(running: list[Worker], is_over: Callable[[], bool], within_sec: float) -> None:
    """Read what the workers tell until it is enough."""
    give_up_at = time.monotonic() + within_sec
    with selectors.DefaultSelector() as selector:
        for worker in running:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        while not is_over():
            if time.monotonic() > give_up_at:
                raise TimeoutError
            for key, _ in selector.select(0.5):
                key.data.read()


def tree_cpu(pids: Sequence[int]) -> float:
    """CPU seconds of processes and all their children so far, those that ended too."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            spent[int(entry.name)] = sum(map(int, fields[11:15])) / tick
    total, left = 0.0, list(pids)
    while left:
        pid = left.pop()
        total += spent.get(pid, 0.0)
        left += parents.get(pid, [])
    return total
