"""The frame: languages, themes, the keyboard, live and paused, small screens, signing in."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from tests.console.browser import PHONE, BrowserThread, Tab
from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Answer, Target

PAGES = (
    "overview",
    "tasks",
    "tasks/new",
    "runs",
    "calendar",
    "ledger",
    "what-if",
    "queue",
    "governance",
    "nodes",
    "letters",
    "settings",
)


@pytest.fixture(scope="module")
def some_task(server: Program, target: Target) -> int:
    body = {
        "name": "seen on every page",
        "schedule": {"kind": "every", "every": "1h"},
        "target_url": target.url("/seen"),
        "tags": ["shown"],
    }
    task_id = int(server.post("/api/v1/tasks", json=body).json()["id"])
    server.post(f"/api/v1/tasks/{task_id}/trigger")
    target.on("/seen-to-fail", Answer(507))
    fails = {**body, "name": "fails", "target_url": target.url("/seen-to-fail")}
    other = server.post("/api/v1/tasks", json=fails).json()["id"]
    server.post(f"/api/v1/tasks/{other}/trigger")
    groups = "/api/v1/dead-letters/groups"
    wait_for(lambda: bool(server.get(groups).json()["groups"]), "there is a dead letter")
    return task_id


def test_language_and_theme_are_switched_and_kept(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    tab.go("tasks")
    page = tab.page
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("任务")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_role("button", name="自动").click()
    page.get_by_role("button", name="浅色").click()
    expect(page.get_by_role("button", name="深色")).to_be_visible()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("任务")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.get_by_role("button", name="深色").click()
    page.get_by_role("button", name="自动").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    kept = page.evaluate("JSON.stringify(localStorage)")
    assert set(page.evaluate("Object.keys(localStorage)")) == {"ksana.lang", "ksana.theme"}, kept


def test_the_keyboard_leads_everywhere(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    tab.go("overview")
    page, heading = tab.page, tab.page.get_by_role("heading", level=1)
    for letter, title in (("t", "Tasks"), ("r", "Runs"), ("q", "Queue"), ("d", "Dead letters")):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(heading).to_have_text(title)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keyboard")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("g t?")
    expect(page.get_by_role("searchbox")).to_have_value("g t?")


def test_a_paused_page_stays_as_it_is(
    browser_thread: BrowserThread, tab: Tab, server: Program, some_task: int
) -> None:
    tab.go(f"runs?task={some_task}", "tbody tr")
    rows = tab.page.locator("tbody tr")
    before = rows.count()
    tab.page.get_by_role("button", name="live").click()
    expect(tab.page.get_by_role("button", name="paused")).to_be_visible()
    asked: list[str] = []
    tab.page.on("request", lambda sent: asked.append(sent.url))
    server.post(f"/api/v1/tasks/{some_task}/trigger")
    tab.page.wait_for_timeout(2500)
    assert rows.count() == before
    assert not asked
    tab.page.get_by_role("button", name="paused").click()
    expect(rows).to_have_count(before + 1)


def test_what_somebody_reads_does_not_jump(
    browser_thread: BrowserThread, tab: Tab, server: Program, some_task: int
) -> None:
    for _ in range(40):
        server.post(f"/api/v1/tasks/{some_task}/trigger")
    tab.go(f"runs?task={some_task}", "tbody tr:nth-child(30)")
    expect(tab.page.get_by_role("button", name="live")).to_be_visible()
    tab.page.evaluate("scrollTo(0, 400)")
    first = tab.page.locator("tbody tr a").first
    before = first.inner_text()
    server.post(f"/api/v1/tasks/{some_task}/trigger")
    newer = tab.page.get_by_role("button", name="There is something newer")
    expect(newer).to_be_visible()
    assert first.inner_text() == before
    newer.click()
    expect(first).not_to_have_text(before)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_serious_accessibility_fault(
    browser_thread: BrowserThread,
    tabs: Callable[..., Tab],
    server: Program,
    some_task: int,
    theme: str,
) -> None:
    tab = tabs(server.url(), color_scheme=theme)
    run = server.get("/api/v1/runs", params={"task_id": some_task}).json()["items"][0]["id"]
    governed = server.request("PUT", "/scheduler/objects/memory/seen-by-axe", json={})
    assert governed.status_code in (200, 201), governed.text
    job = {"addon_id": "axe", "job_type": "looks", "cost_units": 1, "payload": {}}
    job_id = server.post("/api/scheduler/jobs/submit", json=job).json()["job"]["job_id"]
    found = {}
    others = ("governance/memory/seen-by-axe", f"queue/{job_id}")
    for place in (*PAGES, f"tasks/{some_task}", f"tasks/{some_task}/edit", f"runs/{run}", *others):
        tab.go(place)
        expect(tab.page.locator(".loading")).to_have_count(0)
        found[place] = tab.find_serious_faults()
    assert {place: faults for place, faults in found.items() if faults} == {}


@pytest.mark.parametrize("days_later", [0, 3])  # times of another day are shown with their date
def test_every_page_fits_a_phone(
    browser_thread: BrowserThread,
    tabs: Callable[..., Tab],
    server: Program,
    some_task: int,
    days_later: int,
) -> None:
    tab = tabs(server.url(), viewport=PHONE, is_mobile=True, has_touch=True)
    day = datetime.now(UTC) + timedelta(days=days_later)
    tab.page.clock.set_system_time(day.replace(hour=23, minute=30))
    wide = {}
    for place in (*PAGES, f"tasks/{some_task}"):
        tab.go(place)
        expect(tab.page.locator(".loading")).to_have_count(0)
        wide[place] = tab.overhang()
    assert {place: by for place, by in wide.items() if by > 0} == {}


@pytest.fixture
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("locked"), args=["--log-level", "warning"]) as program:
        yield program.start()


def test_the_first_key_is_made_signed_in_with_and_a_revoked_one_signs_out(
    browser_thread: BrowserThread, locked: Program, tabs: Callable[..., Tab]
) -> None:
    tab = tabs(locked.url())
    tab.expected = ("401",)
    page = tab.page
    tab.go("settings")
    page.get_by_placeholder("Name").fill("mine")
    page.get_by_role("button", name="Make a key").click()
    key = page.locator(".once code").inner_text()
    assert key.startswith("ksana_")
    expect(page.locator("tbody tr", has_text="mine")).to_contain_text("live")
    page.get_by_role("button", name="Sign out").click()
    field = page.get_by_label("API key")
    field.fill("ksana_wrong_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    field.fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("tbody tr", has_text="mine")).to_be_visible()
    assert key not in page.evaluate(
        "JSON.stringify([localStorage, sessionStorage, document.cookie])"
    )
    key_id = key.split("_")[1]
    bearer = {"authorization": f"Bearer {key}"}
    answer = locked.request("DELETE", f"/api/v1/keys/{key_id}", headers=bearer)
    assert answer.json() == {"revoked": True}
    expect(page.get_by_text("Your key was revoked")).to_be_visible()
    expect(page.get_by_text("mine")).to_have_count(0)
