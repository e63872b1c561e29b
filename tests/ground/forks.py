"""Running collected tests in forks of the process that has collected them: what a fork breaks ends
with it."""

import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable

import pytest

from tests.ground import leash

MEMORY_BYTES = 6 * 2**30


def in_a_fork(run: Callable[[], str], seconds: float, cpu_seconds: float | None = None) -> str:
    """What a function answers in a fork; "timeout" if it does not answer in time, "died" if it
    ends without an answer. Time is the clock's and, if asked for, the processor's: on a busy
    machine a loop without an end is found by the latter."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reads)
            _settle(cpu_seconds)
            os.write(writes, run().encode())
        finally:
            os._exit(0)
    os.close(writes)
    answer, end = b"", time.monotonic() + seconds
    while True:
        ready = select.select([reads], [], [], max(0.0, end - time.monotonic()))[0]
        part = os.read(reads, 65_536) if ready else None
        if not part:
            break
        answer += part
    os.close(reads)
    if part is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if part is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return "timeout"
    return answer.decode() or "died"


def _settle(cpu_seconds: float | None) -> None:
    """Make a fork quiet and bounded."""
    leash.die_with_parent()
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    if cpu_seconds is not None:
        most = math.ceil(cpu_seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 60))


def run_until_failure(items: list[pytest.Item]) -> str:
    """Run tests until one fails: its name, or "nobody"."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        if any(report.failed for report in run_one(item, following)):
            return item.nodeid
    return "nobody"


def run_one(item: pytest.Item, following: pytest.Item | None) -> list[pytest.TestReport]:
    """Run one test, and tell how it went."""
    reports: list[pytest.TestReport] = []

    class Watch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report)

    watch = Watch()
    item.config.pluginmanager.register(watch)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    item.config.pluginmanager.unregister(watch)
    return reports
