"""Fixtures of the browser tests: one browser and one server for all, a fresh tab for each."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.console.browser import BrowserThread, Tab, open_tab
from tests.ground.process import Program
from tests.ground.server import MissingServerError, skip_missing
from tests.ground.target import Target


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run tests that use the browser on the browser's thread."""
    thread = pyfuncitem.funcargs.get("browser_thread")
    if not isinstance(thread, BrowserThread):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    thread.run(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture(scope="session")
def browser_thread() -> Iterator[BrowserThread]:
    thread = BrowserThread()
    try:
        thread.run(lambda: thread.browser)
    except MissingServerError as missing:
        thread.close()
        skip_missing(missing)
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A server for all tests that leave it as they found it, but for tasks of their own."""
    with Program(tmp_path_factory.mktemp("console"), args=["--log-level", "warning"]) as program:
        yield program.start()


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    with Target() as one:
        yield one


@pytest.fixture
def tabs(browser_thread: BrowserThread) -> Iterator[Callable[..., Tab]]:
    """Opens tabs. What they must not do is looked at in the end."""
    opened: list[Tab] = []

    def make(origin: str, **options: Any) -> Tab:
        opened.append(open_tab(browser_thread.browser, origin, **options))
        return opened[-1]

    yield make

    def end() -> None:
        for tab in opened:
            tab.context.close()

    browser_thread.run(end)
    for tab in opened:
        tab.check()


@pytest.fixture
def tab(browser_thread: BrowserThread, tabs: Callable[..., Tab], server: Program) -> Tab:
    return browser_thread.run(tabs, server.url())
