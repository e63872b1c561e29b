"""The test ground itself: each server starts, answers, fails as told and comes back; the proxy and
the target do harm."""

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import psycopg
import pymysql
import pytest
import redis as redis_py

from tests.ground.child import wait_for
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.proxy import FaultProxy
from tests.ground.redis import Redis, RedisCluster
from tests.ground.server import obtain
from tests.ground.target import Target


def ask_mysql(url: str, *statements: str) -> list[tuple[object, ...]]:
    parts = urlsplit(url)
    connection = pymysql.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        database=parts.path[1:],
        autocommit=True,
        read_timeout=20,
    )
    with contextlib.closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def ask_postgres(url: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def ask(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements on any store; the rows of the last."""
    if url.startswith("sqlite:////"):
        with (
            contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection,
            connection,
        ):
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall()
    return (ask_mysql if url.startswith("mysql:") else ask_postgres)(url, *statements)


def test_every_kind_of_store_url_leads_to_an_empty_store(store_url: str) -> None:
    rows = ask(
        store_url, "CREATE TABLE t (n INTEGER)", "INSERT INTO t VALUES (7)", "SELECT n FROM t"
    )
    assert rows == [(7,)]


def test_the_next_test_finds_nothing_of_the_last(store_url: str) -> None:
    ask(store_url, "CREATE TABLE t (n INTEGER)")
    assert ask(store_url, "SELECT count(*) FROM t") == [(0,)]


def test_mariadb_is_durable_by_its_settings_and_keeps_data_over_kill_and_stop(
    mariadb: MariaDB,
) -> None:
    url = mariadb.url(mariadb.create_database())
    assert ask_mysql(url, "SELECT @@innodb_flush_log_at_trx_commit") == [(1,)]
    assert "REPEATABLE-READ" in {
        row[1] for row in ask_mysql(url, "SHOW VARIABLES LIKE '%isolation'")
    }
    ask_mysql(url, "CREATE TABLE t (n INTEGER)", "INSERT INTO t VALUES (7)")
    for end in (mariadb.kill, mariadb.stop):
        end()
        assert not mariadb.is_running
        mariadb.start()
        assert ask_mysql(url, "SELECT n FROM t") == [(7,)]


def test_postgres_is_durable_by_its_settings_and_keeps_data_over_kill_and_stop(
    postgres: Postgres,
) -> None:
    url = postgres.url(postgres.create_database())
    assert (
        ask_postgres(url, "SHOW fsync") == ask_postgres(url, "SHOW synchronous_commit") == [("on",)]
    )
    ask_postgres(url, "CREATE TABLE t (n INTEGER)", "INSERT INTO t VALUES (7)")
    for end in (postgres.kill, postgres.stop):
        end()
        assert not postgres.is_running
        postgres.start()
        assert ask_postgres(url, "SELECT n FROM t") == [(7,)]


def test_a_paused_mariadb_is_silent_until_resumed(mariadb: MariaDB) -> None:
    _is_silent_while_paused(mariadb, lambda: ask_mysql(mariadb.url("mysql"), "SELECT 1"))


def test_a_paused_postgres_is_silent_even_to_those_already_connected(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        _is_silent_while_paused(postgres, lambda: connection.execute("SELECT 1").fetchall())


def _is_silent_while_paused(
    server: MariaDB | Postgres, question: Callable[[], list[tuple[object, ...]]]
) -> None:
    server.pause()
    pipe_in, pipe_out = os.pipe()
    try:
        # The answer can come only after the thaw: a helper process thaws, and says when.
        code = (
            f"import os,time\ntime.sleep(0.3)\nos.write({pipe_out}, b'%d' % time.monotonic_ns())\n"
        )
        code += "".join(
            f"os.kill({pid}, {int(signal.SIGCONT)})\n" for pid in server._child.family()
        )  # type: ignore[union-attr]
        helper = subprocess.Popen([sys.executable, "-c", code], pass_fds=[pipe_out])
        assert question() == [(1,)]
        answered_ns = time.monotonic_ns()
        assert helper.wait() == 0
        assert int(os.read(pipe_in, 40)) < answered_ns
    finally:
        os.close(pipe_in)
        os.close(pipe_out)
        server.resume()


def test_redis_answers_and_forgets_everything_when_killed(redis: Redis) -> None:
    client = redis_py.Redis.from_url(redis.url(), decode_responses=True)
    client.set("k", "v")
    assert client.get("k") == "v"
    client.close()
    redis.kill()
    assert not redis.is_answering()
    redis.start()
    with redis.connect() as again:
        assert again.get("k") is None


def test_a_durable_redis_remembers(request: pytest.FixtureRequest) -> None:
    server = obtain(lambda: Redis(is_durable=True))
    request.addfinalizer(server.close)
    with server.connect() as client:
        client.set("k", "v")
    server.kill()
    server.start()
    with server.connect() as client:
        assert client.get("k") == "v"


def test_three_redis_masters_share_the_slots_and_a_killed_one_comes_back(
    redis_cluster: RedisCluster,
) -> None:
    with contextlib.closing(redis_cluster.connect()) as client:
        for number in range(30):
            client.set(f"k{number}", number)
        assert [client.get(f"k{number}") for number in range(30)] == [
            str(number) for number in range(30)
        ]
    sizes = []
    for node in redis_cluster.masters:
        with node.connect() as own:
            sizes.append(own.dbsize())
    assert sum(sizes) == 30
    assert min(sizes) > 0
    redis_cluster.masters[1].kill()
    redis_cluster.heal()
    assert redis_cluster.is_settled()


def test_a_redis_replica_takes_over_from_a_killed_master(request: pytest.FixtureRequest) -> None:
    cluster = obtain(lambda: RedisCluster(replicas=1))
    request.addfinalizer(cluster.close)
    cluster.masters[0].kill()

    def has_taken_over() -> bool:
        with cluster.replicas[0].connect() as client:
            return client.info("replication")["role"] == "master"

    wait_for(has_taken_over, "the replica becomes a master", within_s=20)


class TestProxy:
    """Faults, shown on a target behind the proxy, and the lost COMMIT on real databases."""

    @pytest.fixture
    def proxy(self, target: Target, proxy_to: Callable[[str, int], FaultProxy]) -> FaultProxy:
        return proxy_to(target.host, target.port)

    def get(self, proxy: FaultProxy, timeout_s: float = 5) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{proxy.port}/", timeout=timeout_s, trust_env=False)

    def test_a_healthy_proxy_passes_everything_on(self, proxy: FaultProxy) -> None:
        assert self.get(proxy).status_code == 200

    def test_it_delays(self, proxy: FaultProxy) -> None:
        proxy.delay(150)
        began = time.monotonic()
        self.get(proxy)
        assert time.monotonic() - began >= 0.3  # the request and the answer, each held

    def test_it_refuses_and_listens_again_on_the_same_port(self, proxy: FaultProxy) -> None:
        proxy.refuse()
        with pytest.raises(httpx.ConnectError):
            self.get(proxy)
        proxy.heal()
        assert self.get(proxy).status_code == 200

    def test_a_blackhole_takes_everything_and_gives_it_back_when_healed(
        self, proxy: FaultProxy, target: Target
    ) -> None:
        proxy.blackhole()
        with pytest.raises(httpx.ReadTimeout):
            self.get(proxy, timeout_s=0.2)
        assert target.requests() == []
        proxy.heal()
        assert self.get(proxy).status_code == 200

    def test_it_cuts_what_is_connected(self, proxy: FaultProxy, target: Target) -> None:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(b"GET /seen HTTP/1.1\r\n\r\n")
            target.wait_for(1, "/seen")
            assert client.recv(100)
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                client.recv(100)

    def test_it_half_closes(self, proxy: FaultProxy, target: Target) -> None:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(b"GET /first HTTP/1.1\r\n\r\n")
            assert client.recv(1000)
            proxy.half_close()
            assert client.recv(100) == b""
            client.sendall(b"GET /second HTTP/1.1\r\n\r\n")
            assert target.wait_for(1, "/second")

    def test_a_lost_commit_reply_means_committed_but_unheard(
        self, faulty_store: tuple[str, FaultProxy]
    ) -> None:
        url, proxy = faulty_store
        ask(url, "CREATE TABLE t (n INTEGER)")
        lost = proxy.lose_reply_to(b"COMMIT")
        with pytest.raises((pymysql.OperationalError, psycopg.OperationalError)):
            ask(url, "BEGIN", "INSERT INTO t VALUES (7)", "COMMIT")
        lost.wait()
        assert lost.count == 1
        assert ask(url, "SELECT n FROM t") == [(7,)]

    def test_a_cut_before_commit_means_not_committed(
        self, faulty_store: tuple[str, FaultProxy]
    ) -> None:
        url, proxy = faulty_store
        ask(url, "CREATE TABLE t (n INTEGER)")
        cut = proxy.cut_before(lambda seen: b"COMMIT" in seen)
        with pytest.raises((pymysql.OperationalError, psycopg.OperationalError)):
            ask(url, "BEGIN", "INSERT INTO t VALUES (7)", "COMMIT")
        cut.wait()
        assert ask(url, "SELECT count(*) FROM t") == [(0,)]
