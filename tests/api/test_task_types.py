"""Tasks of types `queue` and `node` over HTTP: their members, what is refused and why, changes, and
how the timer dialect sees them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.domain.handover import job_id_of
from ksana.domain.queue.admission import Limits
from ksana.domain.tasks.records import QUEUE_PLACE
from ksana.engine.tasks.queue_runs import start_runs
from ksana.service.queue.handover import QueueHandover
from ksana.service.queue.service import QueueService
from tests.api.tasks_ground import URL, Ground, open_tasks

pytestmark = pytest.mark.spec("B5")

TASKS = "/api/v1/tasks"
QUEUE = {"addon_id": "etl", "job_type": "nightly"}
BODY: dict[str, Any] = {
    "name": "nightly",
    "cron_expr": "0 0 2 * * *",
    "type": "queue",
    "queue": QUEUE,
}
WHOLE: dict[str, Any] = {
    **QUEUE,
    "cost_units": 7,
    "priority": "URGENT",
    "payload": {"day": "{{scheduled_at}}", "deep": {"list": [1, 2.5, None], "text": "é"}},
    "constraints": {"gpu_required": True, "tier": "gold"},
    "max_attempts": 3,
    "fairness_key": "customer-5",
}


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


async def make(ground: Ground, **members: Any) -> dict[str, Any]:
    made: dict[str, Any] = await ground.ask("POST", TASKS, {**BODY, **members}, status=201)
    return made


async def test_a_queue_task_is_shown_as_it_was_written(ground: Ground) -> None:
    made = await make(ground, queue=WHOLE)
    assert made["type"] == "queue"
    assert made["queue"] == WHOLE
    assert (made["node"], made["target_url"], made["body_template"]) == (None, "", None)
    assert made["timeout_seconds"] == 86_400
    shown = await ground.ask("GET", f"{TASKS}/{made['id']}", status=200)
    assert shown["queue"] == WHOLE


async def test_what_is_left_out_gets_its_default(ground: Ground) -> None:
    made = await make(ground)
    assert made["queue"] == {
        **QUEUE,
        "cost_units": 1,
        "priority": "NORMAL",
        "payload": {},
        "constraints": {},
        "max_attempts": 1,
        "fairness_key": None,
    }


async def test_a_task_that_was_read_can_be_sent_back_whole(ground: Ground) -> None:
    made = await make(ground, queue=WHOLE)
    again = await ground.ask("PUT", f"{TASKS}/{made['id']}", made, status=200)
    assert {**again, "version": 1, "updated_at": ""} == {**made, "updated_at": ""}
    plain = await ground.make_task(name="plain")
    again = await ground.ask("PUT", f"{TASKS}/{plain['id']}", plain, status=200)
    assert (again["queue"], again["node"], again["target_url"]) == (None, None, URL)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"queue": None}, "queue"),
    ({"queue": {"job_type": "x"}}, "queue.addon_id"),
    ({"queue": {"addon_id": "x"}}, "queue.job_type"),
    ({"queue": {**QUEUE, "addon_id": ""}}, "queue.addon_id"),
    ({"queue": {**QUEUE, "job_type": "x" * 129}}, "queue.job_type"),
    ({"queue": {**QUEUE, "cost_units": 0}}, "queue.cost_units"),
    ({"queue": {**QUEUE, "cost_units": 101}}, "queue.cost_units"),
    ({"queue": {**QUEUE, "priority": "SOON"}}, "queue.priority"),
    ({"queue": {**QUEUE, "max_attempts": 1001}}, "queue.max_attempts"),
    ({"queue": {**QUEUE, "constraints": {"x": "y" * 4096}}}, "queue.constraints"),
    ({"queue": {**QUEUE, "constraints": []}}, "queue.constraints"),
    ({"queue": {**QUEUE, "colour": "red"}}, "queue.colour"),
    ({"queue": {**QUEUE, "payload": {"a": "{{nobody}}"}}}, "queue.payload"),
    ({"queue": {**QUEUE, "max_attempts": 2}, "delivery": "at_most_once"}, "queue.max_attempts"),
    ({"node": {"model": "echo"}}, "node"),
    ({"target_url": URL}, "target_url"),
    ({"http_method": "POST"}, "http_method"),
    ({"headers": {"x-a": "b"}}, "headers"),
    ({"body_template": "{}"}, "body_template"),
    ({"exec_type": "ASYNC"}, "exec_type"),
    ({"connect_timeout": "1s"}, "connect_timeout"),
    ({"callback_timeout_sec": 60}, "callback_timeout_sec"),
    ({"callback_method": "PUT"}, "callback_method"),
    ({"retry_on_callback_failure": True}, "retry_on_callback_failure"),
    ({"follow_redirects": 1}, "follow_redirects"),
    ({"signing_secret": "whsec_" + "QUFB" * 11}, "signing_secret"),
    ({"secret_headers": ["x-a"]}, "secret_headers"),
    ({"secret_body": True}, "secret_body"),
    ({"timeout_seconds": 31 * 86_400}, "timeout_seconds"),
    ({"timeout_seconds": 0}, "timeout_seconds"),
]


@pytest.mark.parametrize(("members", "field"), REFUSED)
async def test_what_cannot_be_is_refused_by_its_name(
    ground: Ground, members: dict[str, Any], field: str
) -> None:
    await ground.refused("POST", TASKS, {**BODY, **members}, field)


async def test_a_call_takes_no_job(ground: Ground) -> None:
    body = {"name": "r", "target_url": URL, "cron_expr": "0 * * * *"}
    await ground.refused("POST", TASKS, {**body, "queue": QUEUE}, "queue")
    await ground.refused("POST", TASKS, {**body, "target_url": None}, "target_url")


async def test_a_payload_without_placeholders_may_hold_braces(ground: Ground) -> None:
    queue = {**QUEUE, "payload": {"a": "{{nobody}}"}}
    made = await make(ground, queue=queue, template=False)
    assert made["queue"]["payload"] == {"a": "{{nobody}}"}


@pytest.mark.spec("C3")
async def test_a_change_merges_into_the_job_and_a_null_sets_back(ground: Ground) -> None:
    made = await make(ground, queue=WHOLE, timeout_seconds=60)
    path = f"{TASKS}/{made['id']}"
    patch = {"queue": {"priority": None, "payload": {"day": None, "more": [1]}, "cost_units": 9}}
    changed = await ground.ask("PATCH", path, patch, status=200)
    assert changed["queue"] == {
        **WHOLE,
        "priority": "NORMAL",
        "cost_units": 9,
        "payload": {"deep": WHOLE["payload"]["deep"], "more": [1]},
    }
    assert changed["timeout_seconds"] == 60
    changed = await ground.ask("PATCH", path, {"timeout_seconds": None}, status=200)
    assert changed["timeout_seconds"] == 86_400
    await ground.refused("PATCH", path, {"queue": None}, "queue")
    await ground.refused("PATCH", path, {"queue": {"addon_id": None}}, "queue.addon_id")
    await ground.refused("PATCH", path, {"target_url": URL}, "target_url")


async def test_a_changed_type_drops_the_members_of_the_former_one(ground: Ground) -> None:
    call = {
        "http_method": "POST",
        "headers": {"x-a": "b"},
        "body_template": '{"a":1}',
        "timeout_seconds": 3,
        "follow_redirects": 2,
    }
    made = await ground.make_task(**call)
    path = f"{TASKS}/{made['id']}"
    await ground.refused("PATCH", path, {"type": "queue"}, "queue")
    changed = await ground.ask("PATCH", path, {"type": "queue", "queue": WHOLE}, status=200)
    assert (changed["type"], changed["queue"], changed["headers"]) == ("queue", WHOLE, {})
    assert changed["timeout_seconds"] == 86_400
    await ground.refused("PATCH", path, {"type": "http"}, "target_url")
    back = await ground.ask("PATCH", path, {"type": None, "target_url": URL}, status=200)
    assert (back["type"], back["queue"], back["body_template"]) == ("http", None, None)
    assert (back["timeout_seconds"], back["target_url"]) == (10, URL)


NODE = {"model": "echo"}
WHOLE_NODE: dict[str, Any] = {
    "model": "echo",
    "labels": {"zone": "a", "gpu": "yes"},
    "priority": 9,
    "payload": {"text": "{{task_name}}", "n": [1]},
    "wait_sec": 5,
    "timeout_sec": 2.5,
}


def node_body(**members: Any) -> dict[str, Any]:
    return {"name": "n", "cron_expr": "0 0 2 * * *", "type": "node", "node": NODE, **members}


async def test_a_node_task_is_shown_as_it_was_written_and_can_be_sent_back(ground: Ground) -> None:
    made = await ground.ask("POST", TASKS, node_body(node=WHOLE_NODE), status=201)
    assert (made["type"], made["node"], made["queue"]) == ("node", WHOLE_NODE, None)
    assert made["timeout_seconds"] == 5 + 3 * 2.5 + 10
    again = await ground.ask("PUT", f"{TASKS}/{made['id']}", made, status=200)
    assert (again["node"], again["timeout_seconds"]) == (WHOLE_NODE, 22.5)
    plain = await ground.ask("POST", TASKS, node_body(name="plain"), status=201)
    assert plain["node"] == {
        **NODE,
        "labels": {},
        "priority": 5,
        "payload": {},
        "wait_sec": 60,
        "timeout_sec": None,
    }
    assert (plain["timeout_seconds"], plain["delivery"]) == (250, "at_least_once")


@pytest.mark.spec("C3")
async def test_a_timeout_that_nobody_chose_follows_the_node_job(ground: Ground) -> None:
    made = await ground.ask("POST", TASKS, node_body(), status=201)
    path = f"{TASKS}/{made['id']}"
    patch = {"node": {"wait_sec": 0, "labels": {"zone": "b"}}}
    changed = await ground.ask("PATCH", path, patch, status=200)
    assert (changed["timeout_seconds"], changed["node"]["labels"]) == (190, {"zone": "b"})
    chosen = await ground.ask("PATCH", path, {"timeout_seconds": 7}, status=200)
    changed = await ground.ask(
        "PATCH", path, {"node": {"wait_sec": 30, "labels": {"zone": None}}}, status=200
    )
    assert (chosen["timeout_seconds"], changed["timeout_seconds"]) == (7, 7)
    assert changed["node"]["labels"] == {}


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"node": None}, "node"),
        ({"node": {}}, "node.model"),
        ({"node": {"model": ""}}, "node.model"),
        ({"node": {**NODE, "priority": 10}}, "node.priority"),
        ({"node": {**NODE, "wait_sec": -1}}, "node.wait_sec"),
        ({"node": {**NODE, "wait_sec": 86_401}}, "node.wait_sec"),
        ({"node": {**NODE, "timeout_sec": 0}}, "node.timeout_sec"),
        ({"node": {**NODE, "labels": {"a": "x" * 129}}}, "node.labels[...]"),
        ({"node": {**NODE, "labels": {str(n): "x" for n in range(65)}}}, "node.labels"),
        ({"node": {**NODE, "payload": "{{nobody}}"}}, "node.payload"),
        ({"node": {**NODE, "colour": "red"}}, "node.colour"),
        ({"delivery": "at_most_once"}, "delivery"),
        ({"queue": QUEUE}, "queue"),
        ({"target_url": URL}, "target_url"),
        ({"timeout_seconds": 86_401}, "timeout_seconds"),
    ],
)
async def test_what_a_node_task_cannot_have_is_refused_by_its_name(
    ground: Ground, members: dict[str, Any], field: str
) -> None:
    await ground.refused("POST", TASKS, node_body(**members), field)


@pytest.mark.spec("C4")
async def test_a_trigger_takes_a_payload_and_no_callback(ground: Ground) -> None:
    made = await make(ground)
    path = f"{TASKS}/{made['id']}/trigger"
    await ground.refused("POST", path, {"override_body": "{not json"}, "override_body")
    await ground.refused("POST", path, {"override_body": '"{{nobody}}"'}, "override_body")
    await ground.refused("POST", path, {"force_async": True}, "force_async")
    started = await ground.ask("POST", path, {"override_body": '{"a": 1}'}, status=202)
    run = await ground.find_run(started["run_id"])
    assert (run.ready_host, run.override_body) == (QUEUE_PLACE, '{"a": 1}')


async def test_a_run_tells_the_job_it_was_handed_to(ground: Ground) -> None:
    made = await make(ground)
    started = await ground.ask("POST", f"{TASKS}/{made['id']}/trigger", status=202)
    path = f"/api/v1/runs/{started['uid']}"
    assert (await ground.ask("GET", path))["handed_to"] is None
    jobs = QueueHandover(QueueService(ground.store, ground.clock, Limits()))
    await ground.store.transact(start_runs, jobs, "i1")
    shown = await ground.ask("GET", path, status=200)
    assert shown["handed_to"] == {"type": "queue", "job_id": job_id_of(started["uid"], 1)}
    assert shown["status"] == "RUNNING"
    await ground.ask("POST", f"{path}/cancel", status=200)
    job = await ground.store.read(lambda tx: tx.jobs.find_job(shown["handed_to"]["job_id"]))
    assert job.state == "CANCELED"
    plain = await ground.make_task()
    started = await ground.ask("POST", f"{TASKS}/{plain['id']}/trigger", status=202)
    await ground.start(started["run_id"])
    assert (await ground.ask("GET", f"/api/v1/runs/{started['uid']}"))["handed_to"] is None


@pytest.mark.spec("T0")
async def test_timers_list_calls_only_and_find_the_others_by_their_id(ground: Ground) -> None:
    timer = await ground.make_timer()
    made = await make(ground, queue=WHOLE)
    assert [one["id"] for one in await ground.ask("GET", "/jobs")] == [timer["id"]]
    path = f"/jobs/{made['job_id']}"
    seen = await ground.ask("GET", path, status=200)
    assert (seen["type"], seen["http"]["url"], seen["http"]["body"]) == ("queue", "", "")
    changed = await ground.ask("PATCH", path, {"name": "renamed", "max_retries": 2}, status=200)
    assert (changed["name"], changed["timeout"]) == ("renamed", "24h")
    await ground.refused("PATCH", path, {"http": {"url": URL}}, "http")
    await ground.refused("PATCH", path, {"type": "http"}, "type")
    assert (await ground.ask("POST", f"{path}/pause"))["enabled"] is False
    assert (await ground.ask("GET", f"{TASKS}/{made['id']}"))["queue"] == WHOLE
    body = {"type": "queue", "http": {"url": URL}, "schedule": {"kind": "every", "every": "5m"}}
    await ground.refused("POST", "/jobs", body, "type")


async def test_the_schema_names_the_members_of_the_job(ground: Ground) -> None:
    schema = await ground.ask("GET", "/openapi.json", status=200)
    shapes = schema["components"]["schemas"]
    assert set(shapes["QueueBody"]["properties"]) == set(WHOLE)
    assert shapes["WholeTask"]["required"] == ["name"]
