"""How workers that pull are made: what they refuse, what they choose, what they are called."""

import inspect
import logging
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from ksana.base.instant import SECOND
from ksana.client import Governor, JobContext, QueueClient, serving
from ksana.client.governance_client import GovernanceClient
from ksana.client.governance_runner import GovernanceRenewals
from ksana.client.pull_worker import PullWorker, choose_wait
from ksana.client.worker import Worker
from tests.client.fake_transport import FakeTransport
from tests.client.governor_house import QuietGovernor

pytestmark = pytest.mark.spec("G5", "Q16")


def test_what_a_governor_cannot_do_is_refused_when_it_is_made() -> None:
    allowed = "allowed: memory, experience, cognition"
    with pytest.raises(ValueError, match=f"object_types: 'thing' is not one; {allowed}"):
        Governor("http://h", object_types=["memory", "thing"])
    with pytest.raises(ValueError, match="concurrency is 1 or more"):
        Governor("http://h", concurrency=0)
    governor = Governor("http://h", object_types=("memory",))
    assert governor.object_types == ["memory"]
    with pytest.raises(ValueError, match="the action: 'paint' is not one; allowed: verify, "):
        governor.add_action("paint", lambda ctx: None)

    @governor.action("verify", deadline_sec=2.5)
    async def verify(ctx: Any) -> None:
        """Nothing to do."""

    assert verify is not None
    assert governor.handlers["verify"].deadline_sec == 2.5
    with pytest.raises(ValueError, match="'verify' has a handler already"):
        governor.add_action("verify", lambda ctx: None)
    governor.add_action("archive", lambda ctx: None)
    assert governor._describe() == "concurrency 10, archive, verify of memory"


@pytest.mark.parametrize(
    ("wait_sec", "lease_sec", "chosen"),
    [
        (None, 15, 5.0),
        (None, 6, 2.0),
        (None, 86_400, 5.0),
        (None, 1, 1 / 3),
        (0, 30, 0),
        (10, 30, 10),
        (7.5, 30, 7.5),
    ],
)
def test_a_third_of_the_lease_at_most_is_waiting(
    wait_sec: float | None, lease_sec: int, chosen: float
) -> None:
    assert choose_wait(wait_sec, lease_sec) == chosen


@pytest.mark.parametrize(
    ("wait_sec", "lease_sec", "words"),
    [
        (None, 0, "ttl_sec lies between 1 and 86400"),
        (None, 86_401, "ttl_sec lies between 1 and 86400"),
        (-0.1, 30, "wait_sec lies between 0 and a third of ttl_sec, 10"),
        (10.1, 30, "wait_sec lies between 0 and a third of ttl_sec, 10"),
    ],
)
def test_a_wait_that_would_cost_the_lease_is_refused(
    wait_sec: float | None, lease_sec: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        choose_wait(wait_sec, lease_sec)


async def test_a_worker_that_is_given_an_address_makes_a_patient_client_of_its_own() -> None:
    workers: list[PullWorker[Any]] = [
        Governor("http://h", api_key="k"),
        Worker("http://h", "shop", api_key="k"),
    ]
    for worker in workers:
        client = worker.client
        assert (client.deadline_sec, client._transport.backoff.most_sec) == (10.0, 2.0)
        assert worker._backoff.most_sec == 2.0
        assert worker._owns_client
        assert worker.worker_id.split("-")[-2] == str(os.getpid())
        assert len(worker.worker_id.split("-")[-1]) == 8
    assert workers[0].worker_id != workers[1].worker_id
    assert [worker.name for worker in workers] == ["governor", "shop"]


async def test_a_worker_claims_beats_and_ends() -> None:
    worker = Worker(QueueClient("http://h"), "shop", "w", ttl_sec=9)

    @worker.job("render", payload_type=dict, interrupt=True)
    async def render(ctx: JobContext) -> None:
        """Nothing to do."""

    assert inspect.iscoroutinefunction(render), "it can still be called"
    worker.add_job("draw", lambda ctx: None)
    assert worker._describe() == "addon shop, concurrency 10, job types draw, render"
    with pytest.raises(ValueError, match="'draw' has a handler already"):
        worker.add_job("draw", lambda ctx: None)
    wire = FakeTransport(worker.client)
    wire.answers = [None]
    await worker.run(burst=True)
    [(method, path, body)] = wire.sent
    assert (method, path) == ("POST", "/api/scheduler/jobs/claim")
    assert (body["addon_id"], body["accept_job_types"]) == ("shop", ["render", "draw"])
    assert (worker.held, worker.held is worker.jobs.held) == ({}, True)
    assert wire.is_closed is False, "who made the client closes it"


async def test_a_worker_without_a_handler_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no handler: register one with @worker\.job"):
        await Worker("http://h", "shop").run()


async def test_the_heartbeats_know_what_is_held() -> None:
    worker, executor = Worker("http://h", "shop", "w", ttl_sec=9), ThreadPoolExecutor()
    thread = worker._start_renewals(executor)
    assert (thread._held is worker.jobs.held, thread._ttl_us) == (True, 9 * SECOND)
    assert thread._on_lost == worker.jobs.on_lost_in_thread
    assert thread._on_cancel == worker.jobs.on_cancel_in_thread
    assert (worker.jobs._executor, worker.jobs._heartbeats) == (executor, thread)


def test_a_program_that_has_set_up_no_logging_says_it_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("ksana.client")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    serving._log_to_stderr()
    assert log.handlers == [], "the program logs already"
    monkeypatch.setattr(logging.root, "handlers", [])
    try:
        log.setLevel(logging.WARNING)
        serving._log_to_stderr()
        assert log.handlers == [], "the program has chosen what is said"
        log.setLevel(logging.NOTSET)

        async def run() -> None:
            log.info("worker w: starting")

        serving.serve_until_signal(run, lambda: None)
    finally:
        log.setLevel(logging.NOTSET)
    said = capsys.readouterr().err
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ INFO worker w: starting\n", said)


def test_a_program_runs_on_the_fast_loop() -> None:
    assert serving._fast_loop() is uvloop.new_event_loop


async def test_the_thread_that_renews_knows_what_is_held() -> None:
    governor = Governor("http://h", "w", lease_sec=9)
    executor: Any = object()
    thread = governor._start_renewals(executor)
    assert governor.jobs._executor is executor
    assert isinstance(thread, GovernanceRenewals)
    assert (thread._held is governor.jobs.held, thread._ttl_us) == (True, 9 * SECOND)
    assert thread._on_lost == governor.jobs.on_lost_in_thread
    assert thread._thread.name == "ksana-renewals-w"


def test_a_governor_run_as_a_program_ends_with_a_signal() -> None:
    client: Any = GovernanceClient("http://h")
    governor = QuietGovernor(client, "w")
    governor.add_action("verify", lambda ctx: None)

    async def pull(*_: Any, **__: Any) -> list[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        await governor.wait_for_stop()
        return []

    client.pull = pull
    governor.serve()
    assert governor.thread.life == ["started", "stopped"]
