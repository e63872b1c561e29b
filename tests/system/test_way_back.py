"""A SQLite store that is damaged or gone: refused or told in words, found by the doctor, and
brought back by what the page on backups says."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ground.child import ChildError, wait_for
from tests.ground.pages import ROOT
from tests.ground.process import Program, clean_environment, run_cli
from tests.ground.target import Answer, Target
from tests.ground.tasks import make_task, trigger, wait_for_run

PAGE = ROOT / "docs" / "operate" / "backup.md"
SHELL = re.compile(r"^( *)```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)

MARK = b'"what the target answered"'

pytestmark = [pytest.mark.timeout(120), pytest.mark.spec("X2", "X10", "X18")]


def blocks(heading: str) -> list[str]:
    """The commands below a heading of the page."""
    text = PAGE.read_text().partition(f"# {heading}\n")[2]
    text = re.split(r"^#+ ", text, flags=re.MULTILINE)[0]
    return [match[1] for match in SHELL.findall(text)]


def type_in(script: str, folder: Path) -> None:
    env = {
        **clean_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PORT": "0",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, script + done.stdout + done.stderr


def fill(program: Program, target: Target, count: int = 5) -> list[int]:
    """A store with some content, in the file and not only in its log."""
    target.on("/x", Answer(body=MARK))
    task = make_task(program, "kept", target.url("/x"), concurrency_policy="PARALLEL")
    runs = [trigger(program, task) for _ in range(count)]
    for run in runs:
        wait_for_run(program, run, "SUCCESS")
    return runs


def damage(file: Path, what: bytes) -> None:
    """Overwrite a page in which some bytes stand."""
    whole = file.read_bytes()
    page = whole.index(what, len(whole) // 4) // 4096 * 4096
    with file.open("r+b") as stream:
        stream.seek(page)
        stream.write(b"\x07" * 4096)


@pytest.mark.fault("F27")
@pytest.mark.parametrize("by", ["sqlite3", "python3"])
def test_a_damaged_store_is_told_found_and_brought_back_as_the_page_says(
    tmp_path: Path, target: Target, by: str
) -> None:
    if shutil.which(by) is None:
        pytest.skip(f"there is no {by} here")
    data = tmp_path / "data"
    [backup] = [block for block in blocks("SQLite") if block.startswith(by)]
    with Program(data) as program:
        program.start()
        runs = fill(program, target, 60)
        type_in(backup, tmp_path)  # beside the running server
        assert program.terminate() == 0
        damage(data / "ksana.db", MARK)
        # Nothing that a start needs is damaged, but a start ends if anybody finds damage during it;
        # afterwards a loop may look at the page before we do, so /readyz may never say yes.
        program.start(until=None)
        wait_for(lambda: program.log_text().count('"started"') == 2, "it is up again")
        answer = program.get("/api/v1/runs", params={"page_size": 500})
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
        assert re.search("damaged .*: restore a backup", answer.json()["message"])
        assert program.get("/readyz").status_code == 503
        assert "Traceback" not in program.log_text()
        program.kill9()

        code, printed = run_cli("doctor", env={**program.env, "PORT": "0"}, cwd=tmp_path)
        assert code != 0
        assert re.search(r"BAD  contents .*table task_runs: .*docs/operate/backup", printed)
        assert "Traceback" not in printed

        for block in blocks("The way back"):
            type_in(block, tmp_path)
        program.start()
        assert [program.get(f"/api/v1/runs/{run}").json()["status"] for run in runs] == [
            "SUCCESS"
        ] * len(runs)


def refusal(program: Program) -> str:
    with pytest.raises(ChildError) as caught:
        program.start()
    return str(caught.value)


@pytest.mark.fault("F27")
@pytest.mark.parametrize(
    ("left", "end"), [("nothing of the file", "terminate"), ("an empty file", "kill9")]
)
def test_a_store_that_vanished_does_not_start_empty(
    tmp_path: Path, target: Target, left: str, end: str
) -> None:
    data = tmp_path / "data"
    [backup] = [block for block in blocks("SQLite") if block.startswith("python3")]
    with Program(data) as program:
        program.start()
        fill(program, target)
        type_in(backup, tmp_path)
        assert getattr(program, end)() in (0, None)
        (data / "ksana.db").unlink()
        if "empty" in left:
            (data / "ksana.db").touch()
        before = {path.name: path.stat().st_size for path in data.glob("ksana.db*")}
        told = refusal(program)
        assert ("is empty" if "empty" in left else "is missing") in told
        assert "ksana.db.lock, which says: opened 20" in told
        assert ("ksana.db-wal with" in told) == (end == "kill9")
        assert "Traceback" not in told
        code, printed = run_cli("doctor", env={**program.env, "PORT": "0"}, cwd=tmp_path)
        assert code != 0 and "a store was here" in printed
        after = {path.name: path.stat().st_size for path in data.glob("ksana.db*")}
        assert after == before, "the evidence was touched"
        for block in blocks("The way back"):
            type_in(block, tmp_path)
        program.start()
        assert program.get("/api/v1/tasks").json()["total"] == 1


def test_a_file_removed_under_the_server_is_told_and_nothing_is_acknowledged_into_it(
    tmp_path: Path, target: Target
) -> None:
    data = tmp_path / "data"
    with Program(data) as program:
        program.start()
        fill(program, target)
        (data / "ksana.db").rename(data / "gone.db")
        wait_for(lambda: program.get("/readyz").status_code == 503, "the probe tells it")
        assert "was removed while the server runs" in program.get("/readyz").text
        body = {"name": "x", "target_url": target.url("/x"), "cron_expr": "0 0 1 1 *"}
        answer = program.post("/api/v1/tasks", body)
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
        (data / "gone.db").rename(data / "ksana.db")
        began = time.monotonic()
        wait_for(lambda: program.get("/readyz").status_code == 200, "ready again", within_s=5)
        assert program.post("/api/v1/tasks", body).status_code == 201
        assert time.monotonic() - began < 5
        assert "Traceback" not in program.log_text()
