"""What became of slots, and what is to come, in the browser."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.console.browser import BrowserThread, Tab
from tests.console.test_tasks_in_browser import make_task, runs_of
from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Hang, Target


@pytest.mark.spec("B2")
def test_the_ledger_shows_what_became_of_every_slot(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    target.on("/hangs-too", Hang())
    task = make_task(
        server,
        target.url("/hangs-too"),
        schedule={"kind": "every", "every": "1s"},
        concurrency_policy="SKIP",
        timeout_seconds=60,
    )
    wait_for(lambda: len(runs_of(server, task, "SKIPPED")) > 1, "slots are skipped")
    server.request("PATCH", f"/api/v1/tasks/{task['id']}/disable")
    counted = server.get("/api/v1/ledger", params={"task_id": task["id"]}).json()["total"]
    assert counted["expected"] == counted["fired"] + sum(counted["skipped"].values()) > 2
    tab.go("ledger", "tbody tr")
    row = tab.page.locator("tbody tr", has_text=task["name"])
    # The page asks anew every ten seconds.
    expect(row.locator("td").nth(1)).to_have_text(str(counted["expected"]), timeout=30_000)
    expect(row).to_contain_text("still running")
    expect(tab.page.get_by_text("Every slot is accounted for")).to_be_visible()
    row.get_by_role("link").click()
    section = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Ledger"))
    expect(section.locator(".figures")).to_contain_text(f"{counted['expected']}Expected")
    expect(section).to_contain_text("still running")


@pytest.mark.spec("B3")
def test_a_schedule_and_an_outage_are_tried_out(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    task = make_task(server, target.url("/tried"), cron_expr="*/5 * * * *", schedule=None)
    tab.go(f"tasks/{task['id']}")
    tab.page.get_by_role("link", name="What if").last.click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("What if")
    schedule = tab.page.get_by_label("Schedule")
    expect(schedule).to_have_value("0 */5 * * * *")
    drawn = tab.page.locator(".lanes .bar")
    expect(tab.page.locator("tbody tr", has_text=task["name"]).first).to_be_visible()
    before = drawn.count()
    assert before > 10
    schedule.fill("10m")
    tab.page.get_by_label("When a slot was missed").select_option("SKIP")
    sums = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Tasks"))
    expect(sums).to_contain_text("2 nobody ran: skipped")
    assert drawn.count() < before
    assert "try=" in tab.page.url, "what is tried is in the address"
    tab.expected = ("status of 400",)
    schedule.fill("61 * * * *")
    expect(tab.page.get_by_role("alert")).to_contain_text("61")


@pytest.mark.spec("B8")
def test_the_calendar_shows_what_falls_together(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    for at in range(2):
        make_task(
            server,
            "http://forecast.test/",
            name=f"ahead {at}",
            schedule={"kind": "every", "every": "10m"},
        )
    tab.go("calendar", ".heat")
    row = tab.page.locator(".heat tr", has_text="forecast.test")
    total = int(row.locator("td").last.inner_text())
    assert 2 * 23 * 6 <= total <= 2 * 24 * 6, "24 hours begin with this one"
    row.get_by_role("button").nth(2).click()
    hour = tab.page.locator("section", has=tab.page.get_by_role("heading", name="forecast.test"))
    expect(hour.locator("tbody tr", has_text="ahead")).to_have_count(2)
    expect(hour.locator("tbody tr", has_text="ahead 0").locator("td").nth(2)).to_have_text("6")
    tab.page.get_by_role("button", name="7 days").click()
    expect(tab.page.locator(".heat thead th").first).to_have_text("Day")
    expect(tab.page.locator(".heat tbody tr").nth(6)).to_be_visible()


@pytest.mark.spec("B8")
def test_tasks_that_fire_together_are_spread_by_a_press_and_back_by_another(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    made = [
        make_task(server, target.url("/alike"), schedule={"kind": "cron", "expr": "0 0 2 * * *"})
        for _ in range(3)
    ]

    def expr_of(task: dict[str, Any]) -> str:
        return str(server.get(f"/api/v1/tasks/{task['id']}").json()["cron_expr"])

    def is_told() -> bool:
        found = server.get("/api/v1/forecast/spread").json()["suggestions"]
        return made[-1]["id"] in [one["task_id"] for one in found]

    wait_for(is_told, "they are told to spread")
    tab.go("calendar")
    section = tab.page.locator("section", has_text="Fire together")
    row = section.locator("tbody tr", has_text=made[-1]["name"])
    row.get_by_role("button", name="Spread").click()
    expect(tab.page.get_by_role("status").first).to_contain_text("now")
    assert expr_of(made[-1]) != "0 0 2 * * *"
    expect(row).to_have_count(0)
    tab.page.get_by_role("button", name="Undo").click()
    wait_for(lambda: expr_of(made[-1]) == "0 0 2 * * *", "it is as it was")
    for task in made:
        server.request("DELETE", f"/api/v1/tasks/{task['id']}")
