"""The distribution `ksana-client`: built from this tree, it runs a worker without the server."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.client.fake_queue import FakeQueue

ROOT = Path(__file__).parents[2]
DEPENDENCIES = ("msgspec", "httptools")
OF_THE_SERVER = ("ksana", "starlette", "uvicorn", "pycurl", "click", "uvloop")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it with the build tools at hand, without a package index."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-index"]
    command = [*pip, "--no-build-isolation", "--no-deps", "-w", str(folder), str(ROOT / "client")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = folder.glob("ksana_client-*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Install it into a fresh environment. Its dependencies come from ours, nothing else does."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    command = [*pip, "install", "--no-index", "--no-deps", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    deps = folder / "deps"
    deps.mkdir()
    for name in DEPENDENCIES:
        (deps / name).symlink_to(Path(sysconfig.get_path("platlib")) / name)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return python, {**env, "PYTHONPATH": str(deps)}


def test_its_wheel_holds_the_client_alone_and_declares_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith("/METADATA")]
        declared = Parser().parsestr(archive.read(metadata).decode())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"ksana_client"}
    assert {"ksana_client/py.typed", "ksana_client/LICENSE"} < set(names)
    required = [line for line in declared.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in required) == sorted(DEPENDENCIES)
    assert {"nodes", "uvloop"} == set(declared.get_all("Provides-Extra", []))


def test_it_imports_without_the_server(python: tuple[Path, dict[str, str]]) -> None:
    program, env = python
    script = f"""
import importlib.util, sys
assert not [name for name in {OF_THE_SERVER!r} if importlib.util.find_spec(name)]
import ksana_client
for name in ksana_client.__all__:
    getattr(ksana_client, name)
strange = [name for name in sys.modules if name.split(".")[0] in {OF_THE_SERVER!r}]
assert not strange, strange
"""
    done = subprocess.run([program, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_node_without_websockets_says_what_to_install(
    python: tuple[Path, dict[str, str]],
) -> None:
    program, env = python
    script = """
import asyncio
from ksana_client import Node
node = Node("http://127.0.0.1:1")
node.add_model("echo", lambda ctx: None)
asyncio.run(node.run())
"""
    done = subprocess.run([program, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "RuntimeError: nodes and sessions need the package `websockets`" in done.stderr
    assert "ksana-client[nodes]" in done.stderr


@pytest.mark.spec("Q10", "Q11")
async def test_its_worker_runs_the_example(
    python: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    program, env = python
    example = (ROOT / "examples" / "queue_worker" / "worker.py").read_text(encoding="utf-8")
    script = tmp_path / "worker.py"
    script.write_text(example.replace("from ksana.client", "from ksana_client"), encoding="utf-8")
    async with FakeQueue() as server:
        [picture] = server.add("render_image", addon_id="visuals", payload={"prompt": "a lake"})
        [words] = server.add("count_words", addon_id="visuals", payload={"text": "to be"})
        process = await asyncio.create_subprocess_exec(
            program, script, env={**env, "KSANA_URL": server.url}, stderr=subprocess.PIPE
        )
        try:
            await server.until(lambda: len(server.accepted) == 2, within_sec=30)
        finally:
            process.terminate()
            _, complaints = await process.communicate()
        assert process.returncode == 0, complaints.decode()
        assert server.results[words]["result_data"] == {"words": 2}
        assert server.results[picture]["status"] == "SUCCEEDED"
