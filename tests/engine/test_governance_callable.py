"""The built-in worker has a Python function do what it cannot: sync or async, within its time."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError
from ksana.base.instant import SECOND
from ksana.boot.callables import load_callable
from ksana.domain.governance.records import GovernanceJob
from ksana.engine.governance.by_callable import PLACES, PerformByCallable
from ksana.engine.governance.worker import GovernanceWorker
from ksana.store.sql import open_store
from tests.ground.governance import Governing

LATER = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def governing(tmp_path: Path) -> AsyncIterator[Governing]:
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", SystemClock())
    yield Governing(store)
    await store.close()


class AtWork:
    """The worker with a function, asking until a fact holds."""

    def __init__(
        self, governing: Governing, function: Callable[[dict[str, Any]], Any], perform_us: int
    ) -> None:
        self.governing = governing
        self.perform = PerformByCallable(function)
        self.worker = GovernanceWorker(
            governing.store,
            governing.clock,
            governing.service.rules,
            SECOND // 50,
            self.perform,
            perform_us=perform_us,
            count_free=self.perform.count_free,
        )

    async def until(self, is_so: Callable[[], Any]) -> None:
        loop = asyncio.ensure_future(self.worker.asking.run())
        try:
            async with asyncio.timeout(15):
                while not await is_so():
                    await asyncio.sleep(0.01)
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)

    async def until_ended(self, job: GovernanceJob) -> GovernanceJob:
        async def is_ended() -> bool:
            found = await self.governing.job(job)
            return found.status not in ("queued", "running") or found.attempt > 0

        await self.until(is_ended)
        return await self.governing.job(job)


def at_work(
    governing: Governing, function: Callable[[dict[str, Any]], Any], perform_us: int = 10 * SECOND
) -> AtWork:
    return AtWork(governing, function, perform_us)


@pytest.mark.spec("G13")
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_function_is_told_the_job_and_says_what_becomes_of_it(
    governing: Governing, kind: str
) -> None:
    await governing.put("m1", status="candidate", evidence_refs='["doc:1"]', data='{"text":"x"}')
    job = await governing.enqueue("m1", action="verify")
    told: list[dict[str, Any]] = []
    threads: list[threading.Thread] = []

    def verify(job: dict[str, Any]) -> dict[str, Any]:
        told.append(job)
        threads.append(threading.current_thread())
        return {"next_action_at": LATER, "next_action": "decay", "object": {"status": "verified"}}

    async def verify_async(job: dict[str, Any]) -> dict[str, Any]:
        return verify(job)

    work = at_work(governing, verify if kind == "sync" else verify_async)
    assert (await work.until_ended(job)).status == "succeeded"
    assert told[0]["job_id"] == job.job_id
    assert told[0]["object"]["data"] == {"text": "x"}
    assert told[0]["object"]["evidence_refs"] == ["doc:1"]
    assert (threads[0] is threading.main_thread()) == (kind == "async")
    governed = await governing.object("m1")
    assert (governed.status, governed.next_action) == ("verified", "decay")
    assert governed.next_action_at == int(LATER.timestamp()) * SECOND


def raise_it(_: Any) -> None:
    raise LookupError("no evidence")


def exit_it(_: Any) -> None:
    raise SystemExit(3)


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (raise_it, "LookupError: no evidence"),
        (exit_it, "RuntimeError: SystemExit: 3"),
        (lambda _: {"result": "no", "error": "not found"}, "not found"),
        (lambda _: {"object": {"weight": -1}}, "the callable's answer cannot be read: "),
        (lambda _: {"next_action_at": datetime(2030, 1, 1)}, "the callable's answer cannot be"),
        (lambda _: 7, "the callable's answer cannot be read: "),
        (lambda _: object(), "the callable's answer cannot be read: "),
    ],
    ids=["raises", "exits", "says no", "bad member", "naive time", "number", "object"],
)
async def test_a_function_that_fails_has_failed_an_attempt(
    governing: Governing, function: Callable[[Any], Any], error: str
) -> None:
    job = await governing.enqueue("m1", action="verify")
    failed = await at_work(governing, function).until_ended(job)
    assert (failed.status, failed.attempt) == ("queued", 1)
    assert (failed.last_error or "").startswith(error)


@pytest.mark.spec("G13")
async def test_a_function_has_its_time_and_one_that_never_returns_uses_up_its_places_and_no_more(
    governing: Governing,
) -> None:
    jobs = [await governing.enqueue(f"m{number}", action="verify") for number in range(PLACES + 4)]
    may_end = threading.Event()
    started: list[str] = []

    def hang(job: dict[str, Any]) -> None:
        started.append(job["job_id"])
        may_end.wait(20)

    work = at_work(governing, hang, perform_us=SECOND // 5)

    async def all_failed() -> bool:
        return [(await governing.job(job)).attempt for job in jobs].count(1) == PLACES

    await work.until(all_failed)
    assert len(started) == PLACES
    assert work.perform.count_free() == 0
    failed = await governing.job(started[0])
    assert failed.last_error == "not done within 200ms"
    # The rest waits, without the loss of an attempt, until a place is free again.
    waiting = [await governing.job(job) for job in jobs if job.job_id not in started]
    assert {(job.status, job.attempt) for job in waiting} == {("queued", 0)}
    may_end.set()

    async def all_started() -> bool:
        return len(started) == len(jobs)

    await work.until(all_started)


@pytest.mark.parametrize(
    ("source", "spec", "message"),
    [
        (None, "nowhere_at_all:f", "there is no module 'nowhere_at_all', neither installed nor in"),
        (None, "nowhere.at.all:f", "there is no module 'nowhere'"),
        (
            "import no_such_thing",
            "mine:f",
            "importing mine failed: No module named 'no_such_thing'",
        ),
        ("1/0", "mine:f", "importing mine failed: ZeroDivisionError: division by zero"),
        ("def f(:", "mine:f", "importing mine failed: SyntaxError"),
        ("x = 1", "mine:f", "mine has no 'f'"),
        ("x = 1", "mine:x", "mine:x is a int, not a function"),
        ("class f: pass", "mine:f", "mine:f is a class"),
        ("def f(): pass", "mine:f", "mine:f takes (); it is called with one argument, the job"),
        ("def f(a, b): pass", "mine:f", "mine:f takes (a, b)"),
        ("def f(a): yield", "mine:f", "mine:f yields"),
    ],
)
def test_a_function_that_cannot_be_called_is_named_before_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str | None,
    spec: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(SetupError) as raised:
        load_callable(spec.replace("mine", name), "the.setting")
    told = str(raised.value).replace(name, "mine")
    assert told.startswith("the.setting: ")
    assert message in told


def test_a_function_may_lie_deeper_or_be_an_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "deep_one.py").write_text(
        "class Checks:\n"
        "    def run(self, job): return 'ran'\n"
        "    def __call__(self, job): return 'called'\n"
        "checks = Checks()\n"
    )
    assert load_callable("deep_one:checks.run", "x")({}) == "ran"
    assert load_callable("deep_one:checks", "x")({}) == "called"
