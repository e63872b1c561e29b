"""What is shipped beside the program: the unit, the image, and the page on proxies."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ground.server import is_ci

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "ksana.service"
MAX_EXPOSURE = 3.0


def test_the_unit_leaves_little_exposed() -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        if is_ci():
            pytest.fail("systemd-analyze is missing, and CI=true forbids to skip")
        pytest.skip("systemd-analyze is not installed")
    told = subprocess.run(
        [program, "security", "--offline=true", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin", "SYSTEMD_COLORS": "0"},
    )
    found = re.search(r"Overall exposure level for ksana.service: ([0-9.]+)", told.stdout)
    assert found is not None, told.stdout + told.stderr
    assert float(found[1]) <= MAX_EXPOSURE


def test_the_units_state_folder_is_for_its_owner_alone() -> None:
    lines = UNIT.read_text().splitlines()
    assert "StateDirectoryMode=0700" in lines
    assert "UMask=0077" in lines


def test_the_image_installs_nothing_without_a_hash() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    installs = re.findall(r"pip install ([^\n&]*)", text)
    assert installs
    for arguments in installs:
        assert "--require-hashes" in arguments or "--no-index" in arguments, arguments
    assert all("${PYTHON_IMAGE}" in line for line in re.findall(r"^FROM (.*)", text, re.M))


def test_the_builder_gets_only_what_the_image_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)", text, re.M)
        for word in line.split()[:-1]
    ]
    for path in copied:
        assert f"!{path}" in rules, path


def test_the_page_on_proxies_warns_of_rewritten_hosts() -> None:
    page = (ROOT / "docs" / "operate" / "proxy.md").read_text()
    assert "rewrites" in page
    assert "proxy_set_header Host $host;" in page
