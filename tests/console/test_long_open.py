"""A tab that is left open while a thousand events happen every second: it stays small and answers.

`KSANA_TAB_MINUTES` says for how long the slow one watches; one minute if it is not set. The process
grows by about a megabyte a minute: that is what the browser keeps of answers for whoever drives it.
The same pages in a browser that is not driven stay at 26 MB.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import CDPSession, expect

from tests.console.browser import BrowserThread, Tab
from tests.ground.process import Program

PER_SECOND = 1_000
MOST_MB = 150.0
MOST_ANSWER_S = 1.0
BATCH = 100
"""Jobs submitted at once. Each leaves one event."""


class Feed:
    """Submits jobs at an even pace, on a thread of its own; `events` is how many it brought."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.events = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(10)

    def _run(self) -> None:
        job = {"addon_id": "feed", "job_type": "noop", "cost_units": 1, "payload": {"n": 1}}
        due = time.monotonic()
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._is_over.wait(max(0.0, due - time.monotonic())):
                body = {"jobs": [job] * BATCH}
                answer = client.post("/api/scheduler/jobs/submit-batch", json=body)
                if answer.status_code == 503:  # a busy machine: as a caller would, later again
                    due = time.monotonic() + float(answer.headers["Retry-After"])
                    continue
                answer.raise_for_status()
                self.events += BATCH
                due = max(due + BATCH / PER_SECOND, time.monotonic() - 1)


@pytest.fixture
def feed(server: Program) -> Iterator[Feed]:
    one = Feed(server.url())
    one.start()
    yield one
    one.stop()


def heap_mb(session: CDPSession) -> tuple[float, int]:
    """What the page holds after a collection: megabytes of JavaScript, and nodes."""
    session.send("HeapProfiler.collectGarbage")
    metrics = {
        one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
    }
    return metrics["JSHeapUsedSize"] / 1e6, int(metrics["Nodes"])


def list_descendants() -> list[int]:
    """The processes that this one has started, and those they have."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found, left = [], [os.getpid()]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def renderer_mb() -> float:
    """The private memory of the largest renderer of this browser."""
    largest = 0.0
    for number in list_descendants():
        folder = Path("/proc", str(number))
        try:
            if b"--type=renderer" not in (folder / "cmdline").read_bytes():
                continue
            rollup = (folder / "smaps_rollup").read_text()
        except OSError:
            continue
        private = sum(map(int, re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE)))
        largest = max(largest, private / 1000)
    return largest


def watch(tab: Tab, feed: Feed, seconds: float) -> list[tuple[float, float, int, float, float]]:
    """Look at the tab now and then: (after how long, MB of heap, nodes, MB of its process, seconds
    to answer a press)."""
    tab.go("overview", ".figures")
    session = tab.context.new_cdp_session(tab.page)
    session.send("Performance.enable")
    began, seen = time.monotonic(), []
    pages = ["Queue", "Overview", "Runs", "Overview"]
    while (at := time.monotonic() - began) < seconds:
        heap, nodes = heap_mb(session)
        pressed = time.monotonic()
        name = pages[len(seen) % len(pages)]
        tab.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        expect(tab.page.get_by_role("heading", level=1)).to_contain_text(name)
        answered = time.monotonic() - pressed
        seen.append((at, heap, nodes, renderer_mb(), answered))
        tab.page.wait_for_timeout(min(15_000, seconds * 100))
    return seen


def check(seen: list[tuple[float, float, int, float, float]]) -> None:
    """Small and flat: what it holds does not grow with what has happened."""
    told = "\n".join(
        f"{at:6.0f} s  heap {heap:5.1f} MB  {nodes:6} nodes  process {process:6.1f} MB  "
        f"answer {answer:.2f} s"
        for at, heap, nodes, process, answer in seen
    )
    assert len(seen) >= 4, told
    assert max(heap for _, heap, _, _, _ in seen) < MOST_MB, told
    assert max(process for _, _, _, process, _ in seen) < MOST_MB, told
    early = max(heap for _, heap, _, _, _ in seen[1 : len(seen) // 2 + 1])
    late = min(heap for _, heap, _, _, _ in seen[len(seen) // 2 :])
    assert late < early * 1.5 + 2, told
    answers = sorted(answer for _, _, _, _, answer in seen)
    assert answers[len(answers) // 2] < MOST_ANSWER_S, told
    print(told)  # noqa: T201


def test_a_tab_stays_small_and_answers_while_much_happens(
    browser_thread: BrowserThread, tab: Tab, feed: Feed
) -> None:
    check(watch(tab, feed, 8))
    assert feed.events > 8 * PER_SECOND / 4, "the feed was held up"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_tab_left_open_for_long_stays_small_and_answers(
    browser_thread: BrowserThread, tab: Tab, feed: Feed
) -> None:
    minutes = float(os.environ.get("KSANA_TAB_MINUTES", "1"))
    check(watch(tab, feed, minutes * 60))
    assert feed.events > minutes * 60 * PER_SECOND / 2, "the feed was held up"
