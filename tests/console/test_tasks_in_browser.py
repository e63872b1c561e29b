"""Tasks, runs and what failed, in the browser."""

import itertools
from typing import Any

from playwright.sync_api import expect

from tests.console.browser import BrowserThread, Tab
from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Answer, Hang, Target

_numbers = itertools.count(1)


def make_task(server: Program, url: str, **members: Any) -> dict[str, Any]:
    body = {
        "name": f"task {next(_numbers)}",
        "schedule": {"kind": "every", "every": "1h"},
        "target_url": url,
        **members,
    }
    answer = server.post("/api/v1/tasks", json=body)
    assert answer.status_code == 201, answer.text
    task: dict[str, Any] = answer.json()
    return task


def runs_of(server: Program, task: dict[str, Any], status: str) -> list[dict[str, Any]]:
    page = server.get(f"/api/v1/tasks/{task['id']}/runs", params={"status": status}).json()
    runs: list[dict[str, Any]] = page["items"]
    return runs


def test_a_skipped_slot_is_explained(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    target.on("/hangs", Hang())
    task = make_task(
        server,
        target.url("/hangs"),
        schedule={"kind": "every", "every": "1s"},
        concurrency_policy="SKIP",
        timeout_seconds=60,
    )
    wait_for(lambda: bool(runs_of(server, task, "SKIPPED")), "a slot is skipped")
    skipped = runs_of(server, task, "SKIPPED")[0]
    tab.go(f"runs/{skipped['id']}", ".why")
    expect(tab.page.get_by_role("heading", level=1)).to_contain_text("skipped")
    expect(tab.page.locator(".why")).to_contain_text("As many runs as allowed were active")
    # The same by the instant, on the task's page.
    tab.go(f"tasks/{task['id']}?at={skipped['scheduled_time']}", ".explained")
    expect(tab.page.locator(".explained .state")).to_have_text("!skipped")
    expect(tab.page.locator(".explained")).to_contain_text("the concurrency policy is SKIP")
    tab.page.get_by_role("button", name="Disable").click()
    expect(tab.page.get_by_role("status").first).to_contain_text("is disabled")
    expect(tab.page.get_by_text("It is disabled: nothing fires.")).to_be_visible()
    tab.page.get_by_role("button", name="Undo").click()
    expect(tab.page.get_by_role("button", name="Disable")).to_be_visible()
    tab.page.get_by_role("button", name="Delete").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(tab.page).to_have_url(f"{server.url()}/ui/#/tasks")
    assert server.get(f"/api/v1/tasks/{task['id']}").status_code == 404


def test_failures_are_grouped_and_a_group_is_retried(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    path = "/breaks"
    target.on(path, Answer(418))
    task = make_task(server, target.url(path))
    for _ in range(3):
        server.post(f"/api/v1/tasks/{task['id']}/trigger")
    wait_for(lambda: len(runs_of(server, task, "FAILED")) == 3, "three runs fail")
    target.on(path, Answer(200))
    tab.go("runs")
    tab.page.get_by_role("link", name="Failures by error").click()
    group = tab.page.locator("section").first.locator("tbody tr", has_text="Teapot")
    expect(group.locator("td").first).to_have_text("3")
    group.get_by_role("button", name="Replay all").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Replay 3 dead letters?")
    dialog.get_by_role("button", name="Replay").click()
    expect(tab.page.get_by_role("status").first).to_contain_text("3 replayed, 0 refused")
    wait_for(lambda: len(runs_of(server, task, "SUCCESS")) == 3, "all are retried")
    expect(tab.page.locator("tbody tr", has_text="Teapot")).to_have_count(0)


def test_one_dead_letter_is_replayed(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    target.on("/breaks-once", Answer(410), Answer(200))
    task = make_task(server, target.url("/breaks-once"))
    server.post(f"/api/v1/tasks/{task['id']}/trigger")
    wait_for(lambda: len(runs_of(server, task, "FAILED")) == 1, "the run fails")
    tab.go("letters?surface=tasks")
    row = tab.page.locator("tbody tr", has_text="410").last
    row.get_by_role("button", name="Replay", exact=True).click()
    expect(tab.page.get_by_role("status").first).to_contain_text("1 replayed")
    wait_for(lambda: len(runs_of(server, task, "SUCCESS")) == 1, "it is run again")


def test_tasks_are_searched_and_changed_together(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    made = [make_task(server, target.url("/bulk"), name=f"bulk {n} &<b>") for n in range(3)]
    tab.go("tasks")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("bulk")
    rows = tab.page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("bulk 0 &<b>")
    assert "name=bulk" in tab.page.url, "the search is in the address"
    tab.page.get_by_label("With all 3 that match…").select_option("disable")
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 tasks")
    dialog.get_by_role("button", name="Disable").click()
    expect(rows.filter(has_text="disabled")).to_have_count(3)
    states = {server.get(f"/api/v1/tasks/{task['id']}").json()["status"] for task in made}
    assert states == {"DISABLED"}
    tab.page.reload()
    expect(rows).to_have_count(3)


def test_a_task_is_changed_in_the_editor_and_a_stale_change_is_refused(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    task = make_task(server, target.url("/edit"), headers={"X-One": "1"}, tags=["a"])
    tab.expected = ("409", "412")
    tab.go(f"tasks/{task['id']}/edit", "form")
    expect(tab.page.get_by_label("Headers")).to_have_value("X-One: 1")
    tab.page.get_by_label("Retries").fill("4")
    server.request("PATCH", f"/api/v1/tasks/{task['id']}", json={"description": "by another"})
    tab.page.get_by_role("button", name="Save").click()
    expect(tab.page.get_by_role("alert").last).to_contain_text("version")
    tab.page.reload()
    tab.page.get_by_label("Retries").fill("4")
    tab.page.get_by_label("Headers").fill("X-Two: 2")
    tab.page.get_by_role("button", name="Save").click()
    expect(tab.page.get_by_role("heading", level=1)).to_contain_text(task["name"])
    changed = server.get(f"/api/v1/tasks/{task['id']}").json()
    assert changed["retry_policy"]["max_retries"] == 4
    assert changed["description"] == "by another"
    assert changed["headers"] == {"X-Two": "2"}
    assert changed["schedule"]["every"] == "1h"


def test_a_timer_without_a_name_is_called_by_its_id_and_found_by_its_last_result(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    target.on("/nameless", Answer(410))
    timer = {
        "id": "nameless-timer",
        "schedule": {"kind": "every", "every": "1h"},
        "http": {"method": "GET", "url": target.url("/nameless")},
    }
    made = server.post("/jobs", json=timer)
    assert made.status_code == 201, made.text
    server.post("/jobs/nameless-timer/run-now")
    wait_for(
        lambda: server.get("/jobs/nameless-timer").json()["last_status"] == "failed", "it fails"
    )
    tab.go("tasks")
    tab.page.get_by_label("Last result").select_option("failed")
    row = tab.page.locator("tbody tr", has_text="nameless-timer")
    expect(row).to_contain_text("failed")
    expect(tab.page.locator("tbody tr", has_text="succeeded")).to_have_count(0)
    row.get_by_role("link", name="nameless-timer").click()
    expect(tab.page.get_by_role("heading", level=1)).to_contain_text("nameless-timer")


def test_what_enabling_does_is_told_before_it_is_done(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    task = make_task(
        server, target.url("/resumed"), schedule={"kind": "every", "every": "1s"}, name="resumed"
    )
    server.request("PATCH", f"/api/v1/tasks/{task['id']}/disable")

    def passed() -> int:
        preview = server.get(f"/api/v1/tasks/{task['id']}/resume-preview").json()
        return int(preview["passed"])

    wait_for(lambda: passed() >= 2, "slots pass")
    tab.go(f"tasks/{task['id']}")
    tab.page.get_by_role("button", name="Enable", exact=True).click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("slots passed while it was disabled")
    expect(dialog).to_contain_text("none of them is made up. It fires next at")
    assert server.get(f"/api/v1/tasks/{task['id']}").json()["status"] == "DISABLED"
    dialog.get_by_role("button", name="Enable").click()
    expect(tab.page.get_by_role("button", name="Disable")).to_be_visible()
    server.request("DELETE", f"/api/v1/tasks/{task['id']}")


def test_past_slots_are_previewed_fired_and_stand_in_the_ledger(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    target.on("/past", Answer(200))
    cron = {"kind": "cron", "expr": "0 0 * * * *"}
    task = make_task(server, target.url("/past"), schedule=cron)
    tab.go(f"tasks/{task['id']}")
    section = tab.page.locator("section", has_text="Past slots")
    section.get_by_label("At most").fill("3")
    section.get_by_label("Per minute").fill("6000")
    section.get_by_role("button", name="Preview").click()
    expect(section).to_contain_text("3 of 24 slots would be fired; 0 have a run already.")
    assert not runs_of(server, task, "SUCCESS")
    section.get_by_role("button", name="Fire them").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Fire them").click()
    expect(tab.page.get_by_role("status").first).to_contain_text("3 past slots are being fired")
    wait_for(lambda: len(runs_of(server, task, "SUCCESS")) == 3, "all of them have run")
    expect(tab.page.locator("tbody tr", has_text="backfill")).to_have_count(3)
    section.get_by_role("button", name="Preview").click()
    expect(section).to_contain_text("3 have a run already")


def test_enabling_makes_up_as_many_slots_as_asked_for(
    browser_thread: BrowserThread, tab: Tab, server: Program, target: Target
) -> None:
    target.on("/made-up", Answer(200))
    task = make_task(
        server, target.url("/made-up"), schedule={"kind": "cron", "expr": "* * * * * *"}
    )
    server.request("PATCH", f"/api/v1/tasks/{task['id']}/disable")
    path = f"/api/v1/tasks/{task['id']}/resume-preview?count=2"
    wait_for(
        lambda: server.get(path).json()["catch_up"]["fires"] == 2, "slots pass while it is disabled"
    )
    tab.go(f"tasks/{task['id']}")
    section = tab.page.locator("section", has_text="Past slots")
    section.get_by_label("At most").fill("2")
    section.get_by_role("button", name="Enable and make up").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("fire the newest 2 of")
    dialog.get_by_role("button", name="Enable").click()
    expect(tab.page.get_by_role("status").first).to_contain_text("2 past slots are being fired")
    server.request("PATCH", f"/api/v1/tasks/{task['id']}/disable")

    def count_made_up() -> int:  # a slot that fell due meanwhile may have run too
        runs = runs_of(server, task, "SUCCESS")
        return [run["trigger"] for run in runs].count("backfill")

    wait_for(lambda: count_made_up() >= 2, "they have run")
    assert count_made_up() == 2
