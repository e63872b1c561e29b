"""An instance that is frozen, whose interpreter stops, or that is cut off from the database, while
it holds runs, until another has taken them over: what waited in it for a slot or for a connection
is not sent any more.

SIGSTOP stands for whatever stops a process for longer than its lease, as a paused machine does. A
pause of the interpreter alone (`tests.ground.pausing`) leaves the process and, if only the event
loop is blocked, its other threads running. Smaller twins, on a virtual clock and with a permit that
is withdrawn, are in `tests/engine/test_tasks_mended.py` and `tests/outbound/test_may_send.py`.
"""

import contextlib
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.ground.child import wait_for
from tests.ground.mariadb import MariaDB
from tests.ground.pausing import PAUSING, PauseKind, pause_environment
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.proxy import FaultProxy
from tests.ground.target import Hold, Target
from tests.ground.tasks import Json, list_runs, note_figures, wait_until_quiet

RUNS, STUCK = 140, 3
AWAY_S = 21.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.spec("C19", "C23", "X4")]


@pytest.fixture(params=["mariadb", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[str, FaultProxy]]:
    """A fresh database for any number of instances, and a way to it that can be cut."""
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    with FaultProxy(server.host, server.port) as proxy:
        yield server.url(name), proxy
    server.heal()
    server.drop_database(name)


class BusyListener:
    """A listener that lets nobody in at first: its queue is full, and connecting hangs. Once it
    does, it notes what callers write."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=0)
        self.url = f"http://{host}:{self._listener.getsockname()[1]}/stuck"
        self._fillers = [socket.socket() for _ in range(4)]
        for filler in self._fillers:
            filler.setblocking(False)
            filler.connect_ex(self._listener.getsockname())
        self.heads: list[bytes] = []
        self._is_closed = False
        self._thread = Thread(target=self._let_in)

    def let_in(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._listener.close()
        for filler in self._fillers:
            filler.close()

    def _let_in(self) -> None:
        self._listener.settimeout(0.1)
        opened: list[socket.socket] = []
        while not self._is_closed:
            with contextlib.suppress(TimeoutError):
                opened.append(self._listener.accept()[0])
        for one in opened:
            one.setblocking(False)
            with contextlib.suppress(OSError), one:
                self.heads += [head for head in (one.recv(65_536),) if head]


def make_once(program: Program, name: str, url: str, due_s: float, **members: Any) -> None:
    run_at = datetime.fromtimestamp(due_s, UTC).isoformat()
    schedule = {"kind": "once", "run_at": run_at}
    body = {"name": name, "target_url": url, "schedule": schedule, **members}
    answer = program.post("/api/v1/tasks", body)
    assert answer.status_code == 201, answer.text


def hold_runs(first: Program, target: Target, busy: BusyListener, delivery: str) -> None:
    """Let the first instance hold runs that wait for a connection, and many more that wait for a
    call slot."""
    options: Json = {
        "delivery": delivery,
        "timeout_seconds": 120,
        "connect_timeout": 60,
        "retry_policy": {"max_retries": 1, "initial_delay": 1},
    }
    due_s = time.time() + 5
    for number in range(STUCK):
        make_once(first, f"stuck{number}", busy.url, due_s - 1, **options)
    for number in range(RUNS):
        make_once(first, f"held{number}", target.url("/held"), due_s, **options)
    target.wait_for(16, "/held", within_s=20)
    wait_for(
        lambda: len(list_runs(first, status="RUNNING")) == STUCK + RUNS,
        "all are held",
        every_s=0.05,
    )


def check_sends(second: Program, target: Target, busy: BusyListener, before: int) -> None:
    """No run was sent twice; those that waited for a connection were not sent at all."""
    wait_until_quiet(second, within_s=60)
    busy.close()
    sent = Counter(one.headers["x-ksana-run-id"] for one in target.requests("/held"))
    runs = {run["uid"]: run for run in list_runs(second)}
    ends = Counter((run["status"], run["reason"]) for run in runs.values())
    note_figures("frozen sender", f"{before} sent before, {len(sent)} in all, {dict(ends)}")
    doubled = {uid: count for uid, count in sent.items() if count > 1}
    assert not doubled, f"{len(doubled)} runs were sent more than once"
    assert len(runs) == STUCK + RUNS
    assert set(ends) <= {("SUCCESS", "ANSWERED_2XX"), ("FAILED", "OUTCOME_UNKNOWN_AT_MOST_ONCE")}
    succeeded = {uid for uid, run in runs.items() if run["status"] == "SUCCESS"}
    assert succeeded <= set(sent), "a success that nobody was called for"
    assert len(sent) > before, "the second instance sent none of those that were never begun"
    assert not busy.heads, "sent by the first instance after another had taken it over"


@pytest.mark.fault("F11")
@pytest.mark.parametrize("plain_http", ["own", "libcurl"])
def test_a_frozen_instance_sends_nothing_more_that_another_has_taken_over(
    tmp_path: Path, shared: tuple[str, FaultProxy], target: Target, plain_http: str
) -> None:
    url, _ = shared
    held, busy = Hold(), BusyListener("127.0.0.2")
    target.on("/held", held)
    env = {"KSANA_TASKS_PLAIN_HTTP": plain_http}
    with (
        Program(tmp_path / "a", store=url, env=env) as first,
        Program(tmp_path / "b", store=url, env=env) as second,
    ):
        first.start()
        hold_runs(first, target, busy, "at_most_once")
        first.pause()
        paused_s = time.monotonic()
        second.start()
        busy.let_in()  # the kernel of the frozen one shakes hands; the process sees it on waking
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - paused_s)))
        held.release()
        first.resume()
        first.wait_for_log("lease held again")
        check_sends(second, target, busy, 16)


@pytest.mark.fault("F11")
@pytest.mark.parametrize(
    ("kind", "plain_http"), [("loop", "own"), ("loop", "libcurl"), ("interpreter", "libcurl")]
)
def test_an_instance_whose_interpreter_stops_sends_nothing_more_that_another_has_taken_over(
    tmp_path: Path,
    shared: tuple[str, FaultProxy],
    target: Target,
    kind: PauseKind,
    plain_http: str,
) -> None:
    url, _ = shared
    held, busy = Hold(), BusyListener("127.0.0.2")
    target.on("/held", held)
    env = {"KSANA_TASKS_PLAIN_HTTP": plain_http}
    paused_env = {**env, **pause_environment(kind, int(AWAY_S) + 4)}
    with (
        Program(tmp_path / "a", store=url, env=paused_env, command=PAUSING) as first,
        Program(tmp_path / "b", store=url, env=env) as second,
    ):
        first.start()
        hold_runs(first, target, busy, "at_most_once")
        first.send(signal.SIGUSR2)
        first.wait_for_log("the pause begins")
        second.start()
        busy.let_in()
        wait_for(
            lambda: list_runs(second, status="FAILED"), "the takeover", within_s=AWAY_S, every_s=0.2
        )
        assert "the pause is over" not in first.log_text(), "it was to last beyond the takeover"
        held.release()
        first.wait_for_log("the pause is over", within_s=AWAY_S)
        first.wait_for_log("lease held again")
        check_sends(second, target, busy, 16)


@pytest.mark.fault("F11")
def test_an_instance_cut_off_from_the_database_stops_sending_before_another_takes_over(
    tmp_path: Path, shared: tuple[str, FaultProxy], target: Target
) -> None:
    url, proxy = shared
    held, busy = Hold(), BusyListener("127.0.0.2")
    target.on("/held", held)
    with (
        Program(tmp_path / "a", store=proxy.url(url)) as first,
        Program(tmp_path / "b", store=url) as second,
    ):
        first.start()
        hold_runs(first, target, busy, "at_most_once")
        proxy.blackhole()
        cut_s = time.monotonic()
        second.start()
        wait_for(
            lambda: list_runs(second, status="FAILED"), "the takeover", within_s=25, every_s=0.2
        )
        held.release()  # now the first has free slots again, and a connection
        busy.let_in()
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - cut_s)))
        proxy.heal()
        first.wait_until("/readyz", within_s=60)
        check_sends(second, target, busy, 16)
