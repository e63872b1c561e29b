"""How the server sets the interpreter it runs in."""

import subprocess
import sys
from pathlib import Path

import pytest

from ksana.boot.interpreter import SWITCH_SECONDS

SCRIPT = """
import gc
import sys

import ksana.boot.server as server
from ksana.cli.main import run

async def tell(loaded, logs):
    print(gc.get_threshold()[0], sys.getswitchinterval())
    return 0

server.serve = tell
sys.argv = ["ksana", "serve"]
run()
"""


@pytest.mark.spec("X13")
def test_no_thread_of_the_server_keeps_the_others_waiting_for_long(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    collects_at, switches_at = done.stdout.split()
    assert float(switches_at) == pytest.approx(SWITCH_SECONDS)
    assert int(collects_at) == 50_000, "the start is loaded with the collector calmed"
