"""What the documents tell people to type, and every example, against a real server on a folder of
its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ground.child import free_port
from tests.ground.pages import DOCS, ROOT
from tests.ground.process import Program, clean_environment

PRINTED = "http://127.0.0.1:7100"
ECHO = "http://127.0.0.1:7101"
SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
WAIT_FOR_A_RUN = """
sleep() {
    until curl -sS "http://127.0.0.1:7100/api/v1/runs?page_size=1" |
        grep -q '"final_status":"SUCCESS"'; do
        command sleep 0.1
    done
}
"""
"""People wait a second or two. A busy machine may need longer: the test waits for the fact."""
FIRST_COLUMN = re.compile(r"^\| (`.+?`) \| (?:counter|gauge|histogram|summary) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("examples")) as program:
        yield program.start()


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """`ksana echo`, which the pages tell to start beside the server."""
    port = free_port()
    command = [sys.executable, "-m", "ksana", "echo", "--port", str(port)]
    with Program(tmp_path_factory.mktemp("echo"), command=command, port=port) as program:
        program.start(until="/")
        yield program


def run(command: list[str], server: Program, cwd: Path, **more: str) -> str:
    """Run a command to its end beside the server; what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {
        **clean_environment(),
        "KSANA_URL": server.url(),
        "KSANA_DATA": str(server.data_dir),
        "PATH": path,
        **more,
    }
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr + server.log_text()[-2000:]
    return done.stdout


def typed(page: str) -> str:
    """The blocks of a page that talk to a running server, as one script."""
    blocks = [block for block in SHELL.findall((ROOT / page).read_text()) if "curl" in block]
    assert blocks
    return "\n".join(["set -euo pipefail", WAIT_FOR_A_RUN, *blocks])


@pytest.mark.parametrize(
    "page", ["README.md", "README.zh-CN.md", "docs/quickstart.md", "docs/zh/quickstart.md"]
)
def test_what_a_page_tells_to_type_works(
    page: str, server: Program, echo: Program, tmp_path: Path
) -> None:
    assert ".venv/bin/ksana echo\n" in SHELL.findall((ROOT / page).read_text())
    script = typed(page).replace("curl -s ", "curl -sS --fail ").replace(PRINTED, server.url())
    printed = run(["bash", "-c", script.replace(ECHO, echo.url())], server, tmp_path)
    assert '"scheduled_time"' in printed
    assert re.search(r"GET /(pulse|tick)$", echo.log_text(), re.MULTILINE)
    assert server.get("/jobs").json() == []


def test_the_quickstart_script_shows_a_firing(
    server: Program, echo: Program, tmp_path: Path
) -> None:
    script = str(ROOT / "examples" / "quickstart.sh")
    printed = run([script], server, tmp_path, TARGET_URL=echo.url())
    assert "GET /example" in echo.log_text()
    assert '"final_status":"SUCCESS"' in printed
    assert '"response_code":200' in printed
    assert server.get("/jobs").json() == []


@pytest.mark.parametrize(
    ("example", "shown"),
    [
        ("async_callback.py", "CALLBACK_SUCCESS, data {'rows': 42}"),
        ("signed_calls.py", "the right secret: 200 SUCCESS\nanother secret: 401 FAILED"),
    ],
)
def test_an_example_does_what_it_says(
    example: str, shown: str, server: Program, tmp_path: Path
) -> None:
    assert shown in run([sys.executable, str(ROOT / "examples" / example)], server, tmp_path)
    assert server.get("/api/v1/tasks").json()["total"] == 0


def test_the_worker_example_finishes_what_was_submitted(server: Program, tmp_path: Path) -> None:
    folder = ROOT / "examples" / "queue_worker"
    env = {**clean_environment(), "KSANA_URL": server.url()}
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, str(folder / "worker.py")], env=env, stdout=log, stderr=log
        )
    try:
        printed = run([sys.executable, str(folder / "submit.py")], server, tmp_path)
    finally:
        worker.terminate()
        worker.wait(30)
    assert printed.count("render_image DONE") == 6
    assert "count_words DONE: {'words': 6}" in printed


@pytest.mark.spec("X17")
def test_the_metrics_that_are_written_about_are_served(server: Program) -> None:
    told = [
        name
        for cell in FIRST_COLUMN.findall((DOCS / "operate/metrics.md").read_text())
        for name in re.findall(r"\w+", cell)
    ]
    assert len(told) > 15
    families = set(re.findall(r"^# TYPE (\w+)", server.get("/metrics").text, re.MULTILINE))
    assert [name for name in told if name not in families] == []


def test_the_loops_that_run_are_those_that_are_written_about(server: Program) -> None:
    running = {
        name.removeprefix("loop ")
        for name in server.get("/readyz").json()["checks"]
        if name.startswith("loop ")
    }
    page = (DOCS / "internals/pump.md").read_text()
    assert (
        sorted(name for name in running if not re.search(rf"(?<![\w-]){name}(?![\w-])", page)) == []
    )


def test_the_container_file_copies_what_exists() -> None:
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    copied = [
        words
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for words in line.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_commands_of_the_operator_pages_run(server: Program, tmp_path: Path) -> None:
    backup = next(
        block
        for block in SHELL.findall((DOCS / "operate/backup.md").read_text())
        if "python3 -c" in block
    )
    run(
        ["bash", "-ec", backup.replace("data/ksana.db", f"{server.data_dir}/ksana.db")],
        server,
        tmp_path,
    )
    assert (tmp_path / "ksana-backup.db").stat().st_size > 0
    keys = SHELL.findall((DOCS / "operate/security.md").read_text())[0]
    own = tmp_path / "own"
    script = "\n".join(line for line in keys.splitlines() if "revoke" not in line)
    env_line = f"export KSANA_DATA={own}\nksana migrate\n"  # a key makes no store by accident
    printed = run(["bash", "-ec", env_line + script], server, tmp_path)
    assert len(re.findall(r"^ksana_[0-9a-f]{12}_", printed, re.MULTILINE)) == 2
    assert "renderer  queue:write" in printed
