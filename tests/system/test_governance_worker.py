"""The built-in worker of a real server, with a function of the user's."""

from pathlib import Path

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program

CHECKS = """
def verify(job):
    print("verifying", job["object_id"], flush=True)
    if job["object"] is None:
        raise LookupError("nobody registered it")
    return {"next_action_at": "2030-01-01T00:00:00Z", "object": {"status": "verified"}}
"""
WORKER = {"KSANA_GOVERNANCE_WORKER_ENABLED": "true", "KSANA_GOVERNANCE_WORKER_INTERVAL": "100ms"}


def enqueue(program: Program, object_id: str) -> str:
    body = {"object_type": "memory", "object_id": object_id, "action": "verify"}
    at = "2026-01-01T00:00:00Z"
    job = program.post("/scheduler/jobs", {**body, "run_at": at, "allow_past": True}).json()
    return str(job["job_id"])


@pytest.mark.spec("G13")
def test_a_function_beside_the_server_verifies(tmp_path: Path) -> None:
    env = {**WORKER, "KSANA_GOVERNANCE_WORKER_CALLABLE": "user_checks:verify"}
    with Program(tmp_path, env=env) as program:
        (tmp_path / "user_checks.py").write_text(CHECKS)  # in the folder it is started in
        program.start()
        program.request("PUT", "/scheduler/objects/memory/known", json={"status": "candidate"})
        known, unknown = enqueue(program, "known"), enqueue(program, "unknown")
        wait_for(
            lambda: (
                program.get(f"/scheduler/jobs/{known}").json()["status"] == "succeeded"
                and program.get(f"/scheduler/jobs/{unknown}").json()["attempt"] == 1
            ),
            "both are looked at",
        )
        found = program.get("/scheduler/objects/memory/known").json()
        assert (found["status"], found["next_action_at"]) == ("verified", "2030-01-01T00:00:00Z")
        failed = program.get(f"/scheduler/jobs/{unknown}").json()
        assert failed["last_error"] == "LookupError: nobody registered it"
        assert "Traceback" in program.log_text()
        assert program.terminate() == 0


@pytest.mark.spec("G13", "X15")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"CALLABLE": "no_such_module:f"}, "there is no module 'no_such_module'"),
        ({"CALLABLE": "json:no_such_function"}, "json has no 'no_such_function'"),
        ({"CALLABLE": "no colon"}, "it must be module:function"),
        ({"CALLABLE": "json:loads", "WEBHOOK": "http://127.0.0.1:9"}, "are both set"),
        ({"TIMEOUT": "2h"}, "it must be at most 1h"),
    ],
)
def test_a_bad_value_stops_the_start_and_says_why(
    tmp_path: Path, env: dict[str, str], message: str
) -> None:
    given = {f"KSANA_GOVERNANCE_WORKER_{name}": value for name, value in env.items()}
    with Program(tmp_path, env=given) as program:
        program.start(until=None)
        assert program.wait_for_end() != 0
        text = program.log_text()
    assert message in text
    assert "governance.worker." in text
    assert "Traceback" not in text
