"""The real process: start, probes, shutdown, and the ways in which a start is refused."""

import signal
import socket
from pathlib import Path

import pytest

from tests.ground.child import free_port, wait_for
from tests.ground.process import Program, run_cli


@pytest.mark.spec("X1")
def test_serve_needs_no_configuration_and_tells_where_it_is_and_what_it_found(
    program: Program,
) -> None:
    program.args = ["--log-format", "console"]
    program.start()
    log = program.log_text()
    assert f"listens on http://127.0.0.1:{program.port}" in log
    assert str(program.data_dir / "ksana.db") in log
    assert "a new store" in log
    program.restart()
    assert "last served" in program.log_text()


@pytest.mark.spec("X18")
def test_probes_answer(program: Program) -> None:
    program.start()
    assert program.get("/health").text == "ok"
    ready = program.get("/readyz").json()
    assert ready["status"] == "ready"
    assert ready["checks"]["store"] == "ok"
    assert ready["checks"]["loop membership"] == "ok"
    assert "ksana_event_loop_lag_seconds" in program.get("/metrics").text


@pytest.mark.spec("X14")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_with_exit_code_0(program: Program, number: int) -> None:
    program.start()
    program.send(number)
    assert program.wait_for_end() == 0
    assert '"msg":"stopped"' in program.log_text()


@pytest.mark.spec("X2")
def test_a_second_server_on_the_same_file_is_refused_with_a_sentence(program: Program) -> None:
    program.start()
    with Program(program.data_dir) as second:
        second.log = program.data_dir / "second.log"
        second.start(until=None)
        assert second.wait_for_end() == 1
        assert f"pid {program.pid}" in second.log_text()
        assert "Traceback" not in second.log_text()
    assert program.get("/health").status_code == 200


def test_a_port_that_is_taken_is_told_first(program: Program) -> None:
    with socket.create_server((program.host, program.port)):
        program.start(until=None)
        assert program.wait_for_end() == 1
    assert f"Cannot listen on 127.0.0.1:{program.port}: the port is taken" in program.log_text()


@pytest.mark.spec("X19")
def test_an_address_that_others_reach_is_refused_without_a_key_unless_insecure(
    tmp_path: Path,
) -> None:
    with Program(tmp_path, env={"KSANA_HOST": "0.0.0.0"}) as program:
        program.start(until=None)
        assert program.wait_for_end() == 1
        assert "no API key exists" in program.log_text()
        program.args = ["--insecure"]
        program.start()
        program.terminate()
        program.args = []
        code, printed = run_cli(
            "key",
            "create",
            "--name",
            "ops",
            "--scope",
            "*:read",
            env={"KSANA_DATA": str(tmp_path)},
            cwd=tmp_path,
        )
        assert code == 0
        program.start()
        assert program.get("/api/v1/events").status_code == 401
        key = printed.strip()
        assert (
            program.get("/api/v1/events", headers={"Authorization": f"Bearer {key}"}).status_code
            == 200
        )


@pytest.mark.spec("X18", "C20")
def test_a_store_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    url = f"mysql://app:topsecret@127.0.0.1:{free_port()}/ksana"
    with Program(tmp_path, store=url) as program:
        program.start(until=None)
        program.wait_until("/health", 503)
        for path in ("/health", "/api/v1/healthz"):
            answer = program.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
            assert answer.headers["retry-after"]
        wait_for(
            lambda: "is away" in program.get("/readyz").text,
            "the probe says what is missing",
            within_s=10,
        )
        answer = program.get("/api/v1/events")
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
        assert program.is_running
        assert program.terminate() == 0
        assert "topsecret" not in program.log_text()


@pytest.mark.spec("X15")
@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        (["--prot", "1"], {}, "--port"),
        ([], {"PORT": "abc"}, "environment PORT"),
        (["--config", "none.toml"], {}, "none.toml"),
        ([], {"KSANA_STORE": "oracle://x"}, "store.url"),
    ],
)
def test_a_bad_setting_stops_the_start_with_a_sentence(
    tmp_path: Path, args: list[str], env: dict[str, str], words: str
) -> None:
    code, printed = run_cli("serve", *args, env=env, cwd=tmp_path)
    assert code != 0
    assert words in printed
    assert "Traceback" not in printed


@pytest.mark.spec("X15")
def test_config_prints_each_value_and_its_origin_with_secrets_masked(tmp_path: Path) -> None:
    (tmp_path / "ksana.toml").write_text("[tasks]\nworkers = 5\n", encoding="utf-8")
    env = {"KSANA_STORE": "mysql://app:topsecret@db/ksana", "KSANA_ODD": "1"}
    code, printed = run_cli("config", "--port", "81", env=env, cwd=tmp_path)
    rows = {line.split()[0]: line for line in printed.splitlines() if "  " in line}
    assert code == 0
    assert "topsecret" not in printed
    assert "KSANA_ODD" in printed
    assert rows["store.url"].split()[1:] == ["mysql://***@db/ksana", "environment", "KSANA_STORE"]
    assert rows["server.port"].split()[1:] == ["81", "flag", "--port"]
    assert rows["tasks.workers"].split()[1:] == ["5", "file", "ksana.toml"]


def test_doctor_and_migrate_tell_the_state_of_a_store(tmp_path: Path) -> None:
    env = {"KSANA_DATA": str(tmp_path / "d"), "PORT": str(free_port())}
    assert run_cli("doctor", env=env, cwd=tmp_path)[0] == 0
    code, printed = run_cli("migrate", env=env, cwd=tmp_path)
    assert code == 0
    assert "applied 0001" in printed
    assert "is up to date" in run_cli("migrate", env=env, cwd=tmp_path)[1]
    code, printed = run_cli("doctor", env=env, cwd=tmp_path)
    assert code == 0
    assert "synchronous=FULL" in printed


@pytest.mark.spec("X19")
def test_keys_are_made_listed_and_revoked_beside_a_running_server(program: Program) -> None:
    program.start()
    env = {"KSANA_DATA": str(program.data_dir)}
    _, printed = run_cli(
        "key", "create", "--name", "w", "--scope", "queue:write", env=env, cwd=program.data_dir
    )
    key = printed.strip()
    assert key.startswith("ksana_")
    listed = run_cli("key", "list", env=env, cwd=program.data_dir)[1]
    assert "queue:write" in listed
    assert key not in listed
    assert run_cli("key", "revoke", key, env=env, cwd=program.data_dir)[0] == 0
    assert "revoked" in run_cli("key", "list", env=env, cwd=program.data_dir)[1]
    assert run_cli("key", "revoke", key, env=env, cwd=program.data_dir)[0] == 1
    assert key not in program.log_text()
