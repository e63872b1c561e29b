"""kill -9 in a loop on SQLite while tasks fire, retry and wait for callbacks: no run lost, none
stuck, each repeat explained.

Five kills by default; KSANA_FULL=1 makes it fifty.
"""

import queue
import random
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.ground.process import Program
from tests.ground.target import Answer, Behaviour, Request, Target
from tests.ground.tasks import (
    FULL,
    SECOND,
    Ledger,
    disable,
    make_task,
    note_figures,
    wait_until_quiet,
)

KILLS = 50 if FULL else 5


class CallingBack:
    """The far end of asynchronous tasks: each call is answered 202 and called back later, as often
    as it takes."""

    def __init__(self) -> None:
        self._due: queue.Queue[str | None] = queue.Queue()
        self.answered = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, request: Request) -> Behaviour:
        self._due.put(request.headers["x-callback-url"])
        return Answer(202)

    def close(self) -> None:
        self._due.put(None)
        self._thread.join(10)

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=5) as client:
            while (url := self._due.get()) is not None:
                try:
                    answer = client.post(url, json={"status": "SUCCESS", "data": {"n": 1}})
                except httpx.HTTPError:
                    self._due.put(url)  # the server is down just now
                    time.sleep(0.01)
                    continue
                if answer.status_code == 503:
                    self._due.put(url)
                    continue
                assert answer.status_code == 200, answer.text
                self.answered += 1


@pytest.fixture
def calling_back() -> Iterator[CallingBack]:
    far_end = CallingBack()
    yield far_end
    far_end.close()


def fail_first(request: Request) -> Behaviour:
    """The first attempt of each run fails."""
    return Answer(503 if request.headers["x-ksana-attempt"] == "1" else 200, after_ms=20)


@pytest.mark.fault("F07")
@pytest.mark.timeout(600)
@pytest.mark.spec("X10", "C19", "C14", "C10", "C18")
def test_kill_9_during_firing_callbacks_and_retries_loses_no_run_and_leaves_none_stuck(
    program: Program, target: Target, calling_back: CallingBack
) -> None:
    target.on("/slow", Answer(after_ms=120))
    target.on("/flaky", fail_first)
    target.on("/async", calling_back.take)
    retry = {"max_retries": 3, "initial_delay": 0.2}
    program.start()
    kinds = {
        "plain": (
            0.1,
            {
                "target_url": target.url("/plain"),
                "concurrency_policy": "PARALLEL",
                "retry_policy": retry,
            },
        ),
        "slow": (
            0.2,
            {
                "target_url": target.url("/slow"),
                "concurrency_policy": "PARALLEL",
                "retry_policy": retry,
            },
        ),
        "in line": (
            0.2,
            {"target_url": target.url("/slow"), "max_queued": 1000, "retry_policy": retry},
        ),
        "flaky": (
            0.2,
            {
                "target_url": target.url("/flaky"),
                "concurrency_policy": "PARALLEL",
                "retry_policy": retry,
            },
        ),
        "catch up": (
            0.5,
            {
                "target_url": target.url("/plain"),
                "misfire_policy": "CATCH_UP_LIMITED",
                "catchup_limit": 3,
                "concurrency_policy": "PARALLEL",
                "retry_policy": retry,
            },
        ),
        "async": (
            0.2,
            {
                "target_url": target.url("/async"),
                "exec_type": "ASYNC",
                "concurrency_policy": "PARALLEL",
                "retry_policy": retry,
                "callback_timeout_sec": 60,
            },
        ),
    }
    tasks = []
    for name, (every_s, members) in kinds.items():
        task = make_task(
            program, name, str(members.pop("target_url")), f"{round(every_s * 1000)}ms", **members
        )
        tasks.append((task, round(every_s * SECOND)))
    dice = random.Random(7)
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.1, 0.9))  # a kill at any moment
        program.kill9()
        program.start()
    disable(program, [task for task, _ in tasks])
    wait_until_quiet(program, within_s=60)

    ledger = Ledger(program)
    ledger.check_finished()
    slots = sum(ledger.check_slots(task, every_us) for task, every_us in tasks)
    repeats = ledger.check_deliveries(target.requests())
    lost = ledger.lost_attempts()
    assert lost, "no kill hit a call under way: this proves nothing"
    missed = sum(event["data"]["count"] for event in ledger.misfires)
    note_figures(
        f"{KILLS} kills",
        f"{slots} slots, {len(ledger.runs)} runs, {missed} slots missed while down, "
        f"{len(lost)} lost attempts, {repeats} repeats, {calling_back.answered} callbacks",
    )
