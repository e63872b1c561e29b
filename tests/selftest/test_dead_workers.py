"""A worker that dies in the middle of a run costs its test, never the run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ground.process import clean_environment

ROOT = Path(__file__).parents[2]

CONFTEST = """
from tests.ground.by_server import ByServer

def pytest_xdist_make_scheduler(config, log):
    return ByServer(config, log)
"""

TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(12))
def test_number(number):
    if number in {deadly}:
        os.abort()

@pytest.mark.parametrize("number", range(4))
def test_on_redis(number):
    if number in {deadly_beside}:
        os.abort()
"""


@pytest.mark.parametrize(
    ("deadly", "deadly_beside"),
    [((2, 3, 11), ()), ((5,), (0, 3))],
)
def test_a_run_goes_on_without_the_test_that_killed_its_worker(
    tmp_path: Path, deadly: tuple[int, ...], deadly_beside: tuple[int, ...]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS.format(deadly=deadly, deadly_beside=deadly_beside))
    options = "-q -n 2 -p xdist -p no:cacheprovider -p no:faulthandler --rootdir"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), str(tmp_path), str(tmp_path)],
        env=clean_environment()
        | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # a quick start
        capture_output=True,
        text=True,
        timeout=110,
    )
    killed = len(deadly) + len(deadly_beside)
    assert re.search(rf"\b{killed} failed, {16 - killed} passed\b", done.stdout), done.stdout
    assert done.returncode == 1
