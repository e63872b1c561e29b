"""Fixtures for all tests. Servers start when first asked for, once per worker, and end with it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from tests.ground import faults, leash, profiles
from tests.ground.by_server import ByServer
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.proxy import FaultProxy
from tests.ground.redis import Redis, RedisCluster
from tests.ground.server import obtain
from tests.ground.target import Target

profiles.load()
if "PYTEST_XDIST_WORKER" in os.environ:
    # A worker whose controller was killed would first finish its test, and its servers would live
    # on so long.
    leash.die_with_parent()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByServer:
    return ByServer(config, log)  # type: ignore[arg-type]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    faults.note_faults(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested for want of a server; then the table of faults."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = (
            str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        )
        if "MISSING SERVER" in reason:
            reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        for reason, count in reasons.items():
            terminalreporter.line(f"{count} tests. {reason}", red=True)
    faults.report_run(terminalreporter)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    server = obtain(MariaDB)
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    server = obtain(Postgres)
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    server = obtain(Redis)
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_cluster_server() -> Iterator[RedisCluster]:
    cluster = obtain(RedisCluster)
    yield cluster
    cluster.close()


@pytest.fixture
def mariadb(mariadb_server: MariaDB) -> Iterator[MariaDB]:
    """MariaDB, well and running at the start of the test, whatever the last one did to it."""
    mariadb_server.heal()
    yield mariadb_server
    mariadb_server.heal()


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """PostgreSQL, well and running."""
    postgres_server.heal()
    yield postgres_server
    postgres_server.heal()


@pytest.fixture
def redis(redis_server: Redis) -> Iterator[Redis]:
    """Redis, well and empty."""
    redis_server.heal()
    redis_server.wipe()
    yield redis_server
    redis_server.heal()


@pytest.fixture
def redis_cluster(redis_cluster_server: RedisCluster) -> Iterator[RedisCluster]:
    """A Redis Cluster of three masters, whole and empty."""
    redis_cluster_server.heal()
    redis_cluster_server.wipe()
    yield redis_cluster_server
    redis_cluster_server.heal()


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh, empty store; the test runs once per kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ksana.db'}"
        return
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.heal()
    server.drop_database(name)


@pytest.fixture(params=["mariadb", "postgres"])
def faulty_store(request: pytest.FixtureRequest) -> Iterator[tuple[str, FaultProxy]]:
    """A fresh store on a network database behind a proxy that fails on command: (url, proxy)."""
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    with FaultProxy(server.host, server.port) as proxy:
        yield proxy.url(server.url(name)), proxy
    server.heal()
    server.drop_database(name)


@pytest.fixture
def proxy_to() -> Iterator[Callable[[str, int], FaultProxy]]:
    """Make proxies: `proxy_to(host, port)`."""
    proxies: list[FaultProxy] = []

    def make(host: str, port: int) -> FaultProxy:
        proxies.append(FaultProxy(host, port))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def target() -> Iterator[Target]:
    """An HTTP target that records and misbehaves as told."""
    with Target() as target:
        yield target


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """The real program on an empty SQLite store, not started yet."""
    with Program(tmp_path / "data") as program:
        yield program


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that moves only when told to; it starts at 2026-01-01T00:00:00Z."""
    return VirtualClock()
