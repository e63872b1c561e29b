"""From an empty store to a fired task, in the browser alone."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.console.browser import BrowserThread, Tab
from tests.ground.process import Program
from tests.ground.target import Target


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("empty"), args=["--log-level", "warning"]) as program:
        yield program.start()


def test_an_empty_store_offers_a_first_timer_which_is_seen_to_fire(
    browser_thread: BrowserThread, empty: Program, target: Target, tabs: Callable[..., Tab]
) -> None:
    tab = tabs(empty.url())
    tab.expected = ("400",)
    page = tab.page
    page.goto(empty.url("/"))
    expect(page).to_have_url(re.compile(r"/ui/"))
    page.get_by_role("link", name="Make your first timer").click()
    page.get_by_label("Name", exact=True).fill("first one")
    page.get_by_label("Cron expression").last.fill("30 2 * * 1-5")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    firings = page.locator(".firings li")
    expect(page.locator(".words")).to_have_text("at 02:30 on Monday to Friday, Europe/Berlin time")
    expect(firings).to_have_count(10)
    page.get_by_label("Cron expression").last.fill("61 * * * *")
    expect(page.get_by_role("alert")).to_contain_text("61")
    page.get_by_label("Kind").select_option("every")
    page.get_by_role("textbox", name="Interval").fill("1s")
    expect(page.get_by_text("make sure that the target can bear it")).to_be_visible()
    page.get_by_label("Target").fill(target.url("/first"))
    page.get_by_role("button", name="Make the task").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("first one")
    # Nothing is pressed: it shows up because it happened.
    fired = page.locator("tbody tr", has_text="succeeded").first
    expect(fired).to_be_visible()
    fired.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Run")
    expect(page.locator(".why")).to_contain_text("The target answered with success")
    expect(page.locator(".waterfall tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("status").first).to_contain_text("Runs again as")
