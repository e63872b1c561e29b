"""Secrets in the store of the real process: sealed by the operator's key, callback tokens as
hashes, nothing left of a deleted task."""

import base64
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program, run_cli
from tests.ground.target import Answer, Target

BEARER = "bearer-of-the-secret-0001"
BODY = "body-of-the-secret-0002"
OVERRIDE = "override-of-the-secret-0003"
SIGNING = "whsec_" + base64.b64encode(b"signing-of-the-secret-4").decode()
SECRETS = (BEARER, BODY, OVERRIDE, SIGNING, SIGNING.removeprefix("whsec_"))
NEVER = "0 0 0 1 1 *"
STORES = ("sqlite:///{}/ksana.db", "json:///{}/jobs.json")


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as one:
        yield one


def serve(tmp_path: Path, key: str = "", store: str = STORES[0]) -> Program:
    env = {"KSANA_SECRET_KEY": key} if key else {}
    return Program(tmp_path / "data", store=store.format(tmp_path / "data"), env=env)


def make_task(program: Program, target: Target, name: str = "t", **members: Any) -> int:
    body = {
        "name": name,
        "cron_expr": NEVER,
        "target_url": target.url(f"/{name}"),
        "http_method": "POST",
        "headers": {"X-Vault": BEARER},
        "secret_headers": ["X-Vault"],
        "signing_secret": SIGNING,
        "body_template": BODY,
        "secret_body": True,
        **members,
    }
    answer = program.post("/api/v1/tasks", body)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def trigger(program: Program, task_id: int, **members: Any) -> int:
    answer = program.post(f"/api/v1/tasks/{task_id}/trigger", members)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["run_id"])


def wait_run(program: Program, run_id: int, *statuses: str) -> dict[str, Any]:
    path = f"/api/v1/runs/{run_id}"
    wait_for(lambda: program.get(path).json()["status"] in statuses, f"the run is {statuses}")
    run: dict[str, Any] = program.get(path).json()
    return run


def on_disk(program: Program) -> bytes:
    """Everything that lies in the data folder but the log."""
    files = [path for path in program.data_dir.iterdir() if path.name != "program.log"]
    return b"".join(path.read_bytes() for path in files if not path.name.startswith("cli-"))


def ask(program: Program, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(program.data_dir / "ksana.db", timeout=10)) as connection:
        rows = connection.execute(sql).fetchall()
        connection.commit()
        return rows


def seals(program: Program) -> set[str]:
    return {row[0] for row in ask(program, "SELECT sealed_by FROM tasks") if row[0]}


@pytest.mark.spec("X16")
@pytest.mark.parametrize("store", STORES)
def test_with_a_key_no_secret_lies_on_the_disk_and_all_are_sent(
    tmp_path: Path, target: Target, store: str
) -> None:
    with serve(tmp_path, new_key(), store) as program:
        program.start()
        task_id = make_task(program, target)
        wait_run(program, trigger(program, task_id), "SUCCESS")
        wait_run(program, trigger(program, task_id, override_body=OVERRIDE), "SUCCESS")
        program.request("PATCH", f"/api/v1/tasks/{task_id}", json={"description": "kept"})
        found = [secret for secret in SECRETS if secret.encode() in on_disk(program)]
        assert not found
        program.terminate()
        assert not [secret for secret in SECRETS if secret.encode() in on_disk(program)]
        program.start()  # what was sealed is opened by another life
        wait_run(program, trigger(program, task_id), "SUCCESS")
        assert "stored in clear text" not in program.log_text()
    calls = target.requests("/t")
    assert [call.body.decode() for call in calls] == [BODY, OVERRIDE, BODY]
    assert {call.headers["x-vault"] for call in calls} == {BEARER}
    assert all(call.headers["webhook-signature"] for call in calls)


@pytest.mark.spec("X16")
@pytest.mark.spec("X19")
def test_of_an_api_key_the_store_has_no_more_than_the_hash(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        assert run_cli("migrate", env=program.env, cwd=tmp_path)[0] == 0
        command = ("key", "create", "--name", "a", "--scope", "*:admin")
        first = run_cli(*command, env=program.env, cwd=tmp_path)[1].strip().splitlines()[-1]
        program.start()
        headers = {"X-API-Key": first, "Idempotency-Key": "one"}
        body = {"name": "b", "scopes": ["*:read"]}
        made = program.post("/api/v1/keys", body, headers=headers)
        assert made.status_code == 201, made.text
        second = made.json()["key"]
        assert program.get("/api/v1/tasks", headers={"X-API-Key": second}).status_code == 200
        for key in (first, second):
            secret = key.rpartition("_")[2]
            assert len(secret) >= 32
            assert secret.encode() not in on_disk(program) + program.log_text().encode()


def test_without_a_key_the_start_warns(tmp_path: Path) -> None:
    with serve(tmp_path) as program:
        program.start()
        lines = [json.loads(line) for line in program.log_text().splitlines() if line[0] == "{"]
        warned = [line for line in lines if "stored in clear text" in line["msg"]]
        assert [line["level"] for line in warned] == ["warning"]
        assert "KSANA_SECRET_KEY" in warned[0]["msg"]


@pytest.mark.parametrize("store", STORES)
def test_a_key_that_is_set_later_seals_what_is_there(
    tmp_path: Path, target: Target, store: str
) -> None:
    key = new_key()
    with serve(tmp_path, "", store) as program:
        program.start()
        task_id = make_task(program, target)
        assert BEARER.encode() in on_disk(program)
        program.terminate()
        program.env["KSANA_SECRET_KEY"] = key
        program.start()
        if store == STORES[0]:
            wait_for(lambda: "clear" not in seals(program), "the secrets are sealed")
            row = ask(program, "SELECT headers_json, options_json, body_template FROM tasks")[0]
            assert not [secret for secret in SECRETS if secret in "".join(row)]
        else:
            wait_for(lambda: BEARER.encode() not in on_disk(program), "the secrets are sealed")
            assert not [secret for secret in SECRETS if secret.encode() in on_disk(program)]
        wait_run(program, trigger(program, task_id), "SUCCESS")
    assert target.requests("/t")[0].headers["x-vault"] == BEARER


def test_a_key_is_replaced_by_giving_both_and_the_old_one_can_go(
    tmp_path: Path, target: Target
) -> None:
    old, new = new_key(), new_key()
    with serve(tmp_path, old) as program:
        program.start()
        first, second = make_task(program, target), make_task(program, target, "u")
        program.request("DELETE", f"/api/v1/tasks/{second}")
        (old_id,) = seals(program) - {"gone"}
        program.terminate()
        program.env["KSANA_SECRET_KEY"] = f"{new},{old}"
        program.start()
        wait_for(lambda: old_id not in seals(program), "everything is sealed by the new key")
        program.terminate()
        program.env["KSANA_SECRET_KEY"] = new
        program.start()
        wait_run(program, trigger(program, first), "SUCCESS")
    assert target.requests("/t")[0].body.decode() == BODY


@pytest.mark.parametrize("given", ["", "another"])
def test_a_start_without_the_key_that_sealed_is_refused(
    tmp_path: Path, target: Target, given: str
) -> None:
    with serve(tmp_path, new_key()) as program:
        program.start()
        make_task(program, target)
        (key_id,) = seals(program)
        program.terminate()
        program.env["KSANA_SECRET_KEY"] = new_key() if given else ""
        program.start(until=None)
        assert program.wait_for_end() == 1
        assert f"sealed by the key {key_id}" in program.log_text()
        assert "Traceback" not in program.log_text()


def test_the_command_replaces_keys_and_shows_by_which_secrets_are_sealed(
    tmp_path: Path, target: Target
) -> None:
    with serve(tmp_path) as program:
        program.start()
        make_task(program, target)
        program.terminate()
        code, made = run_cli("secret", "new-key", cwd=tmp_path)
        assert code == 0
        (tmp_path / "key").write_text(made)
        env = {**program.env, "KSANA_SECRET_KEY_FILE": str(tmp_path / "key")}
        assert "clear: 1 tasks" in run_cli("secret", "status", env=env, cwd=tmp_path)[1]
        code, told = run_cli("secret", "rotate", env=env, cwd=tmp_path)
        assert (code, "1 tasks were stored anew" in told) == (0, True), told
        (key_id,) = seals(program)
        shown = run_cli("secret", "status", env=env, cwd=tmp_path)[1]
        assert f"seals by: {key_id}" in shown
        assert f"{key_id}: 1 tasks" in shown
        assert made.strip() not in run_cli("config", env=env, cwd=tmp_path)[1]


@pytest.mark.parametrize("key", ["short", "x" * 44, base64.b64encode(b"16 bytes are few").decode()])
def test_a_key_that_is_none_is_refused_without_being_shown(tmp_path: Path, key: str) -> None:
    with serve(tmp_path, key) as program:
        program.start(until=None)
        assert program.wait_for_end() == 1
        assert "32 random bytes in base64 or hex" in program.log_text()
        assert key not in program.log_text()


@pytest.mark.parametrize("has_key", [True, False])
def test_a_deleted_task_keeps_no_secret(tmp_path: Path, target: Target, has_key: bool) -> None:
    with serve(tmp_path, new_key() if has_key else "") as program:
        program.start()
        task_id = make_task(program, target)
        wait_run(program, trigger(program, task_id, override_body=OVERRIDE), "SUCCESS")
        assert program.request("DELETE", f"/api/v1/tasks/{task_id}").status_code == 200
        kept = ask(program, "SELECT headers_json, options_json, body_template FROM tasks")
        assert json.loads(kept[0][0]) == {"X-Vault": "***"}
        assert "ksana1:" not in repr(kept)
        assert not [secret for secret in SECRETS if secret in repr(kept)]
        assert ask(program, "SELECT override_body FROM task_runs") == [(None,)]


def test_a_retry_of_a_deleted_task_is_not_sent_without_its_secrets(
    tmp_path: Path, target: Target
) -> None:
    target.on("/t", Answer(500, after_ms=1500), Answer(200))
    with serve(tmp_path) as program:
        program.start()
        retry = {"max_retries": 3, "initial_delay": 0.1}
        task_id = make_task(program, target, retry_policy=retry)
        run_id = trigger(program, task_id)
        target.wait_for(1)
        program.request("DELETE", f"/api/v1/tasks/{task_id}")
        run = wait_run(program, run_id, "FAILED", "CANCELED")
        assert len(target.requests()) == 1
        if run["status"] == "FAILED":
            assert "its secrets with it" in run["error_message"]


def test_a_sealed_secret_is_opened_in_its_own_place_only(tmp_path: Path, target: Target) -> None:
    with serve(tmp_path, new_key()) as program:
        program.start()
        mine, other = make_task(program, target), make_task(program, target, "u")
        (headers,) = ask(program, f"SELECT headers_json FROM tasks WHERE id = {other}")[0]
        sealed = json.loads(headers)["X-Vault"]
        path = f"/api/v1/tasks/{mine}"
        refused = program.request("PATCH", path, json={"headers": {"X-Vault": sealed}})
        assert refused.status_code == 400
        ask(
            program,
            "UPDATE tasks SET version = version + 1, headers_json = "
            f"(SELECT headers_json FROM tasks WHERE id = {other}) WHERE id = {mine}",
        )
        run = wait_run(program, trigger(program, mine), "FAILED")
        assert "sealed for another place" in run["error_message"]
        assert not target.requests("/t")


@pytest.mark.spec("C15", "C16")
@pytest.mark.parametrize("has_key", [True, False])
def test_the_store_has_the_hash_of_a_callback_token_and_every_attempt_sends_the_token(
    tmp_path: Path, target: Target, has_key: bool
) -> None:
    target.on("/t", Answer(500), Answer(202))
    with serve(tmp_path, new_key() if has_key else "") as program:
        program.start()
        retry = {"max_retries": 3, "initial_delay": 2}
        task_id = make_task(program, target, exec_type="ASYNC", retry_policy=retry)
        run_id = trigger(program, task_id)
        wait_run(program, run_id, "RETRYING")
        program.kill9()
        program.start()
        wait_run(program, run_id, "CALLBACK_PENDING")
        first, second = target.wait_for(2)
        token = first.headers["x-callback-token"]
        assert second.headers["x-callback-token"] == token
        assert len(token) == 32
        assert token.encode() not in on_disk(program)
        (stored,) = ask(program, "SELECT callback_token FROM task_runs")[0]
        assert len(stored) == 64
        assert program.post(f"/api/v1/callbacks/{stored}", {"status": "FAILED"}).status_code == 404
        told = program.post(f"/api/v1/callbacks/{token}", {"status": "SUCCESS"})
        assert told.json() == {"run_id": run_id, "final_status": "SUCCESS"}
        assert token.encode() not in on_disk(program)


def test_a_run_started_under_one_key_is_called_back_under_the_next(
    tmp_path: Path, target: Target
) -> None:
    target.on("/t", Answer(500), Answer(202))
    with serve(tmp_path) as program:
        program.start()
        retry = {"max_retries": 3, "initial_delay": 3}
        run_id = trigger(program, make_task(program, target, exec_type="ASYNC", retry_policy=retry))
        wait_run(program, run_id, "RETRYING")
        program.terminate()
        program.env["KSANA_SECRET_KEY"] = new_key()
        program.start()
        wait_run(program, run_id, "CALLBACK_PENDING")
        first, second = target.wait_for(2)
        assert first.headers["x-callback-token"] == second.headers["x-callback-token"]
        told = program.request("POST", second.headers["x-callback-url"], json={"status": "SUCCESS"})
        assert told.json()["final_status"] == "SUCCESS"
