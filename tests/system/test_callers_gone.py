"""Callers that hang up while they wait for jobs: nothing is handed to nobody."""

import json
import socket

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program

GONE = 20


@pytest.fixture
def waiting(program: Program) -> Program:
    return program.start()


def hang_up(program: Program, path: str, body: dict[str, object]) -> None:
    """Send requests that wait, see that they are taken, and close their connections."""
    before = count_connections(program)
    for _ in range(GONE):
        _ask_and_hang_up(program, path, body)
    wait_for(lambda: count_connections(program) <= before, "the server sees that they are gone")


def _ask_and_hang_up(program: Program, path: str, body: dict[str, object]) -> None:
    host, port = program.url().removeprefix("http://").split(":")
    text = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(text)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.encode() + text)
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def count_connections(program: Program) -> int:
    with open(f"/proc/{program.pid}/net/tcp") as table:
        port = f":{int(program.url().rpartition(':')[2]):04X}"
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


@pytest.mark.spec("Q2", "Q3")
def test_a_job_is_not_claimed_for_callers_that_hung_up_while_they_waited(waiting: Program) -> None:
    claim = {"worker_id": "gone", "wait_sec": 30, "lease": True}
    hang_up(waiting, "/api/scheduler/jobs/claim", claim)
    job = {"addon_id": "a", "job_type": "t", "cost_units": 1, "payload": {}}
    made = [waiting.post("/api/scheduler/jobs/submit", json=job).json()["job"] for _ in range(5)]
    for _ in made:
        answer = waiting.post(
            "/api/scheduler/jobs/claim", json={"worker_id": "here", "wait_sec": 5}
        )
        assert answer.status_code == 200, "all were handed to callers that hung up"
        assert answer.json()["job"]["claimed_by"] == "here"


@pytest.mark.spec("G2")
def test_no_governance_job_is_pulled_for_callers_that_hung_up_while_they_waited(
    waiting: Program,
) -> None:
    hang_up(waiting, "/scheduler/jobs/pull", {"worker_id": "gone", "wait_sec": 30})
    job = {
        "object_type": "memory",
        "object_id": "m1",
        "action": "verify",
        "run_at": "2020-01-01T00:00:00Z",
        "allow_past": True,
    }
    assert waiting.post("/scheduler/jobs", json=job).status_code == 201
    answer = waiting.post("/scheduler/jobs/pull", json={"worker_id": "here", "wait_sec": 5})
    assert [one["object_id"] for one in answer.json()["jobs"]] == ["m1"]
