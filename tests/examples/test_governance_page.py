"""The page on governance: what it tells people to type works, and its verifier verifies."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.engine.governance.anchoring import purge_audit
from ksana.store.sql import open_store
from tests.examples.test_examples import run
from tests.ground.governance import SECOND, Governing
from tests.ground.pages import DOCS
from tests.ground.process import Program

SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGE = DOCS / "governance.md"


def verifier(folder: Path) -> Path:
    """The code of the page, as a file."""
    (code,) = [
        block
        for block in PYTHON.findall(PAGE.read_text(encoding="utf-8"))
        if "def verify(lines)" in block
    ]
    path = folder / "verify.py"
    path.write_text(code)
    return path


def check(path: Path, lines: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(path)], input="\n".join(lines), capture_output=True, text=True
    )
    assert done.stderr == ""
    assert (done.returncode == 0) == (done.stdout.strip() == "whole")
    return [] if done.returncode == 0 else done.stdout.splitlines()


@pytest.mark.spec("G12")
@pytest.mark.parametrize("page", [PAGE, DOCS / "zh" / "governance.md"], ids=["en", "zh"])
def test_what_the_page_tells_to_type_works_and_a_stranger_verifies_the_export(
    program: Program, tmp_path: Path, page: Path
) -> None:
    program.start()
    blocks = SHELL.findall(page.read_text(encoding="utf-8"))
    script = "\n".join(["set -euo pipefail", *blocks])
    script = script.replace("curl -s ", "curl -sS --fail ")
    script = script.replace("localhost:7100", program.url().removeprefix("http://"))
    printed = run(["bash", "-c", script], program, tmp_path)
    assert '"status":"succeeded"' in printed
    assert "The audit is whole" in printed
    exported = run(["ksana", "audit", "export"], program, tmp_path)
    assert check(verifier(tmp_path), exported.splitlines()) == []


async def export(governing: Governing) -> list[str]:
    return [line.decode().rstrip("\n") async for line in governing.audit.export()]


@pytest.mark.spec("G12")
async def test_the_verifier_of_the_page_finds_what_was_done_to_an_export(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", SystemClock())
    governing = Governing(store)
    for number in range(6):
        await governing.enqueue(f"m{number}")
    await governing.anchor()
    for job in await governing.pull(6):
        await governing.ack(job)
    await governing.anchor()
    path = verifier(tmp_path)
    lines = await export(governing)
    assert check(path, lines) == []
    entries = [place for place, line in enumerate(lines) if '"kind":"entry"' in line]
    third = json.loads(lines[entries[2]])

    def altered(**more: Any) -> list[str]:
        changed = json.dumps({**third, **more})
        return [*lines[: entries[2]], changed, *lines[entries[2] + 1 :]]

    forged = third["body"].replace("tester", "mallory")
    assert "chain 0: entry 3 was altered" in check(path, altered(body=forged))
    missing = [*lines[: entries[2]], *lines[entries[2] + 1 :]]
    assert "chain 0: entry 4 does not follow entry 2" in check(path, missing)
    swapped = list(lines)
    swapped[entries[2]], swapped[entries[3]] = lines[entries[3]], lines[entries[2]]
    assert check(path, swapped)
    cut = [line for place, line in enumerate(lines) if place not in entries[-2:]]
    assert any("ends at" in finding for finding in check(path, cut))
    await store.transact(purge_audit, governing.clock.now() + SECOND, 5)
    assert check(path, await export(governing)) == []
    await store.close()
