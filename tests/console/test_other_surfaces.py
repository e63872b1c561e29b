"""Queue, governance and nodes, in the browser."""

import asyncio
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.console.browser import BrowserThread, Tab
from tests.ground.background import BackgroundLoop
from tests.ground.child import wait_for
from tests.ground.node_peers import EchoNode
from tests.ground.process import Program


@pytest.fixture
def node(server: Program) -> Iterator[str]:
    """A node that is connected."""
    loop = BackgroundLoop("node")

    async def start() -> EchoNode:
        one = EchoNode(lambda: server.port, "node-of-the-console")
        one.start()
        await asyncio.wait_for(one.is_ready.wait(), 10)
        return one

    one = loop.call(start())
    yield one.node_id
    loop.call(one.stop())
    loop.close()


def test_a_gate_is_changed_and_the_change_taken_back(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    def state() -> str:
        gates = server.get("/scheduler/gates").json()["gates"]
        return str(next(gate["state"] for gate in gates if gate["gate"] == "cognition"))

    tab.go("governance")
    tab.page.get_by_label("State of gate cognition").select_option("closed")
    tab.page.get_by_role("dialog").get_by_role("button", name="Set the gate").click()
    expect(tab.page.get_by_role("status").first).to_contain_text("cognition is closed now")
    expect(tab.page.locator("tbody tr", has_text="cognition").first).to_contain_text("✕closed")
    assert state() == "closed"
    tab.page.get_by_role("button", name="Undo").click()
    wait_for(lambda: state() == "open", "the gate is open again")
    expect(tab.page.locator("tbody tr", has_text="gate").first).to_be_visible()


def test_a_node_is_drained(
    browser_thread: BrowserThread, tab: Tab, server: Program, node: str
) -> None:
    tab.go("nodes")
    row = tab.page.locator("tbody tr", has_text=node)
    expect(row).to_contain_text("ready")
    row.get_by_role("button", name="Drain", exact=True).click()
    expect(row).to_contain_text("draining")
    assert server.get(f"/api/v1/nodes/{node}").json()["draining"] is True
    row.get_by_role("button", name="Undrain").click()
    expect(row).to_contain_text("ready")


def test_a_job_says_why_it_waits_and_is_cancelled(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    body = {"addon_id": "console", "job_type": "waits", "cost_units": 2, "payload": {"n": 1}}
    job = server.post("/api/scheduler/jobs/submit", json=body).json()["job"]
    tab.go("queue?state=QUEUED")
    tab.page.locator("tbody tr", has_text="console / waits").get_by_role("link").click()
    expect(tab.page.locator(".why")).to_contain_text("no worker that takes it has claimed it yet")
    tab.page.get_by_role("button", name="Cancel").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Cancel").last.click()
    expect(tab.page.get_by_role("heading", level=1)).to_contain_text("canceled")
    found = server.get(f"/api/scheduler/jobs/{job['job_id']}").json()["job"]
    assert found["state"] == "CANCELED"


@pytest.mark.spec("G6")
def test_an_object_is_found_with_its_budget_and_what_comes_next(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    body = {
        "status": "active",
        "auto_verify_budget": 3,
        "next_action": "verify",
        "next_action_at": "2099-01-01T00:00:00Z",
        "data": {"claim": "water is wet"},
    }
    made = server.request("PUT", "/scheduler/objects/memory/of-the%2Fconsole", json=body)
    assert made.status_code == 201, made.text
    tab.go("governance")
    tab.page.get_by_label("Type").select_option("memory")
    tab.page.get_by_label("Id begins with…").fill("of-the/con")
    rows = tab.page.locator("section", has_text="Objects").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("active")
    rows.get_by_role("link").click()
    expect(tab.page.get_by_role("heading", level=1)).to_contain_text("of-the/console")
    facts = tab.page.locator(".facts")
    expect(facts.locator("div", has_text="Verifications left")).to_contain_text("3")
    expect(tab.page.locator("pre")).to_contain_text("water is wet")
    expect(tab.page.locator(".why")).to_be_visible()


def test_dead_letters_that_cannot_be_reached_are_said_to_be_missing(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    gone = {"surface": "nodes", "reason": "redis is away"}
    tab.page.route(
        "**/api/v1/dead-letters?*",
        lambda route: route.fulfill(
            json={"letters": [], "next_cursor": None, "unavailable": [gone]}
        ),
    )
    tab.go("letters")
    expect(tab.page.get_by_role("alert")).to_contain_text(
        "Dead letters of nodes cannot be reached: redis is away"
    )


def test_the_depth_of_the_queue_is_shown_by_priority(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    body = {"addon_id": "console", "job_type": "deep", "cost_units": 1, "priority": "URGENT"}
    later = {**body, "priority": "LOW", "run_at": "2099-01-01T00:00:00Z"}
    jobs = [
        server.post("/api/scheduler/jobs/submit", json=one).json()["job"]["job_id"]
        for one in (body, body, later)
    ]
    depth = tab.page.locator("section", has_text="Depth by priority")
    tab.go("queue")
    urgent = depth.locator("tbody tr", has_text="urgent").locator("td")
    expect(urgent).to_have_text(["urgent", "2", "0", "0", "0", "0", "0"])
    low = depth.locator("tbody tr", has_text="low").locator("td")
    expect(low.nth(2)).to_have_text("1")
    for job_id in jobs:
        server.post(f"/api/scheduler/jobs/{job_id}/cancel", json={})
    expect(urgent.nth(1)).to_have_text("0")
    rows = server.get("/api/scheduler/stats/depth").json()["priorities"]
    rows[0]["ready"] = {"count": 10_000, "more": True}
    tab.page.route("**/stats/depth", lambda route: route.fulfill(json={"priorities": rows}))
    tab.page.reload()
    expect(urgent.nth(1)).to_have_text("≥ 10,000")


@pytest.mark.spec("G12")
def test_the_audit_is_verified_on_the_page(
    browser_thread: BrowserThread, tab: Tab, server: Program
) -> None:
    made = server.request("PUT", "/scheduler/objects/memory/audited", json={"status": "active"})
    assert made.status_code in (200, 201), made.text
    portion = {
        "ok": True,
        "checked": 5000,
        "anchors": 0,
        "restarted": False,
        "next_cursor": "more",
        "first_fault": None,
    }
    tab.go("governance")
    said = tab.page.locator(".check")
    button = said.get_by_role("button")
    expect(said).to_contain_text("Nothing was verified")
    button.click()
    expect(said).to_contain_text("The audit is whole: ")

    tab.page.route("**/audit/verify*", lambda route: route.fulfill(json=portion))
    button.click()
    expect(said).to_contain_text("entries verified so far")
    said.get_by_role("button", name="Stop").click()
    expect(said).to_contain_text("Stopped after ")

    fault = {"kind": "ALTERED", "chain": 0, "seq": 17, "message": "m", "id": None}
    wrong = {**portion, "ok": False, "first_fault": fault}
    tab.page.unroute("**/audit/verify*")
    tab.page.route("**/audit/verify*", lambda route: route.fulfill(json=wrong))
    button.click()
    expect(said).to_contain_text("Something is wrong: entry 17 of chain 0 was altered")
    tab.page.get_by_role("button", name="中文").click()
    expect(said).to_contain_text("链 0 的第 17 条记录被改动")
