"""Dead letters of the real process, with a Redis that is not there."""

from pathlib import Path

import pytest

from tests.ground.child import free_port, wait_for
from tests.ground.process import Program


@pytest.mark.spec("B12")
def test_letters_of_tasks_are_listed_although_redis_is_away(tmp_path: Path) -> None:
    env = {"KSANA_COORDINATION": f"redis://127.0.0.1:{free_port()}"}
    with Program(tmp_path, env=env) as program:
        program.start(until="/health")
        body = {"name": "t", "cron_expr": "0 0 0 1 1 *", "retry_policy": {"max_retries": 0}}
        body["target_url"] = f"http://127.0.0.1:{free_port()}/"
        task = program.post("/api/v1/tasks", body).json()
        program.post(f"/api/v1/tasks/{task['id']}/trigger", {})

        def has_letter() -> bool:
            return bool(program.get("/api/v1/dead-letters").json()["letters"])

        wait_for(has_letter, "the run failed for good")
        page = program.get("/api/v1/dead-letters").json()
        assert [one["surface"] for one in page["letters"]] == ["tasks"]
        assert [one["surface"] for one in page["unavailable"]] == ["nodes"]
        assert page["unavailable"][0]["reason"]
        done = program.post("/api/v1/dead-letters/dismiss", {"filter": {}}).json()
        assert (done["count"], done["unavailable"][0]["surface"]) == (1, "nodes")
