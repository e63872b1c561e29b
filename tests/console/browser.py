"""Chromium, driven by Playwright, on a thread of its own: Playwright keeps an event loop running on
the thread that started it, and other tests of this process need theirs."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests.ground.server import MissingServerError, find_program, skip_missing

R = TypeVar("R")
ROOT = Path(__file__).parents[2]
AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
WIDE = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 800}
ARGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
PATIENCE_MS = 15_000


class BrowserThread:
    """One browser for all tests."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "browser")
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def run(self, work: Callable[..., R], *args: Any, **options: Any) -> R:
        return self._thread.submit(work, *args, **options).result()

    @property
    def browser(self) -> Browser:
        """Only to be asked for on the thread."""
        if self._browser is None:
            program = find_program("chromium", "chromium-browser", "google-chrome")
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(executable_path=program, args=ARGS)
        return self._browser

    def close(self) -> None:
        def end() -> None:
            if self._browser is not None:
                self._browser.close()
            if self._playwright is not None:
                self._playwright.stop()

        self.run(end)
        self._thread.shutdown()


@dataclass
class Tab:
    """A page, and everything in it that must not happen."""

    page: Page
    context: BrowserContext
    origin: str
    faults: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of console messages that a test provokes."""

    def go(self, place: str, wait: str = "h1") -> None:
        self.page.goto(f"{self.origin}/ui/#/{place}")
        self.page.locator(wait).first.wait_for()

    def check(self) -> None:
        unexpected = [
            fault for fault in self.faults if not any(part in fault for part in self.expected)
        ]
        assert not unexpected, unexpected

    def find_serious_faults(self) -> list[str]:
        """What axe finds on the page as it is."""
        if not AXE.exists():
            skip_missing(MissingServerError("axe-core (scripts/console) is not installed"))
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {json.dumps([node['target'] for node in one['nodes']][:3])}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def overhang(self) -> int:
        """How many pixels the page is wider than the screen."""
        return int(
            self.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )


def open_tab(browser: Browser, origin: str, **options: Any) -> Tab:
    options = {"viewport": WIDE, "timezone_id": "UTC", "locale": "en-GB", **options}
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    tab = Tab(page, context, origin)
    faults = tab.faults
    page.on("console", lambda said: said.type == "error" and faults.append(said.text))
    page.on("pageerror", lambda error: faults.append(f"exception: {error}"))
    page.on(
        "request",
        lambda sent: (
            sent.url.startswith((f"{origin}/", "data:"))
            or faults.append(f"left the origin: {sent.url}")
        ),
    )
    return tab
