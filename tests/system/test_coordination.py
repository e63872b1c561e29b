"""Several instances on one store without Redis: they work, and say what they cannot do (X3)."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ground.child import wait_for
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.target import Target

WARNING = "nodes need Redis for several instances"


@pytest.fixture(params=["mariadb", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database that several instances may share."""
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


def told(program: Program) -> dict[str, Any]:
    ready = program.get("/readyz")
    assert ready.status_code == 200, ready.text
    document: dict[str, Any] = ready.json()
    return document


def fire_soon(program: Program, url: str) -> None:
    run_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
    answer = program.post(
        "/jobs", {"http": {"url": url}, "schedule": {"kind": "once", "run_at": run_at}}
    )
    assert answer.status_code == 201, answer.text


@pytest.mark.spec("X3", "X18")
def test_two_instances_with_memory_work_and_warn_once(
    tmp_path: Path, shared_url: str, target: Target
) -> None:
    with (
        Program(tmp_path / "one", store=shared_url) as one,
        Program(tmp_path / "two", store=shared_url) as two,
    ):
        one.start()
        assert told(one)["checks"]["coordination"] == "ok"
        assert WARNING not in one.log_text()
        two.start()
        two.wait_for_log(WARNING)
        one.wait_for_log(WARNING)  # with its next sign of life
        for n, program in enumerate((one, two)):
            ready = told(program)
            assert ready["status"] == "ready"
            assert ready["problems"] == []
            assert ready["checks"]["coordination"].startswith(
                "ok, but one other instance is on this store"
            )
            fire_soon(program, target.url(f"/{n}"))
        job = {"addon_id": "a", "job_type": "t", "cost_units": 1}
        submitted = one.post("/api/scheduler/jobs/submit", job)
        assert submitted.status_code == 201, submitted.text
        claimed = two.post(
            "/api/scheduler/jobs/claim", {"worker_id": "w", "limit": 1, "wait_sec": 10}
        )
        assert claimed.status_code == 200, claimed.text
        assert claimed.json()["job"]["job_id"] == submitted.json()["job"]["job_id"]
        target.wait_for(2)
        assert {request.path for request in target.requests()} == {"/0", "/1"}
        assert two.terminate() == 0
        wait_for(
            lambda: told(one)["checks"]["coordination"] == "ok",
            "the other one is gone",
            within_s=15,
        )
        two.start()
        wait_for(
            lambda: told(one)["checks"]["coordination"] != "ok",
            "the other one is back",
            within_s=15,
        )
        assert one.log_text().count(WARNING) == 1  # once per start


@pytest.mark.spec("X3", "X18", "N15")
def test_redis_that_is_away_is_told_and_stops_nothing_else(
    program: Program, target: Target
) -> None:
    program.env["KSANA_COORDINATION"] = "redis://:topsecret@127.0.0.1:1/0"
    program.start()
    wait_for(
        lambda: "127.0.0.1:1" in str(program.get("/readyz").json()["problems"]),
        "the problem is told",
        within_s=20,
    )
    fire_soon(program, target.url("/x"))
    target.wait_for(1)
    refused = program.post("/api/v1/node-jobs", {"model": "echo", "request_id": "r"})
    assert (refused.status_code, refused.json()["code"]) == (503, "SCHEDULER_DEPENDENCY_DOWN")
    assert "topsecret" not in program.log_text()
    assert "topsecret" not in program.get("/readyz").text


@pytest.mark.spec("X3")
def test_two_instances_with_memory_refuse_nodes(tmp_path: Path, shared_url: str) -> None:
    with (
        Program(tmp_path / "one", store=shared_url) as one,
        Program(tmp_path / "two", store=shared_url) as two,
    ):
        one.start()
        two.start()
        refused = two.post("/api/v1/node-jobs", {"model": "echo"})
        wait_for(
            lambda: (
                two.post("/api/v1/node-jobs", {"model": "echo"}).json()["code"]
                == "SCHEDULER_DEPENDENCY_DOWN"
            ),
            "nodes are refused",
            within_s=15,
        )
        refused = two.post("/api/v1/node-jobs", {"model": "echo"})
        assert refused.status_code == 503
        assert "Redis" in refused.json()["message"]
        assert refused.headers["retry-after"]


@pytest.mark.spec("X3")
def test_one_instance_on_a_file_has_nothing_to_warn_of(program: Program) -> None:
    program.start()
    assert told(program)["checks"]["coordination"] == "ok"
    program.kill9()
    program.start()  # its former life's lease still runs, and is no other instance
    assert told(program)["checks"]["coordination"] == "ok"
    assert WARNING not in program.log_text()
