"""The examples of nodes, in two languages, against a real server."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from ksana.client import NodeJobError, NodeSession
from tests.ground.child import wait_for
from tests.ground.pages import ROOT
from tests.ground.process import Program, clean_environment
from tests.ground.server import is_ci

FOLDER = ROOT / "examples" / "nodes"
TYPESCRIPT = ROOT / "examples" / "node-ts"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("nodes")) as program:
        yield program.start()


@contextlib.contextmanager
def running(command: Sequence[str], server: Program, log: Path) -> Iterator[Path]:
    """A program beside the test; at the end it is told to end, and must do so without an error."""
    env = {**clean_environment(), "KSANA_URL": server.url()}
    with log.open("wb") as output:
        child = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        yield log
        child.terminate()
        assert child.wait(30) == 0, log.read_text()
    finally:
        child.kill()
        child.wait()


def models(server: Program) -> set[str]:
    return {
        model for node in server.get("/api/v1/nodes").json()["nodes"] for model in node["models"]
    }


@pytest.mark.spec("N3", "N4")
def test_the_python_node_answers_the_python_session(server: Program, tmp_path: Path) -> None:
    env = {**clean_environment(), "KSANA_URL": server.url()}
    command = [sys.executable, str(FOLDER / "node.py")]
    with running(command, server, tmp_path / "node.log"):
        done = subprocess.run(
            [sys.executable, str(FOLDER / "session.py")],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("partial TO", "partial BE", "partial OR", "partial NOT"),
        "result {'text': 'TO BE OR NOT'}",
        "result {'characters': 5}",
        "failed EMPTY_TEXT",
        "ended CANCELED",
    ]
    wait_for(lambda: not models(server), "the node has left")


def lacks(what: str) -> NoReturn:
    """Skip on a laptop, fail in CI, so that nothing goes untested in silence."""
    if is_ci():
        pytest.fail(f"MISSING: {what}, and CI=true forbids to skip", pytrace=False)
    pytest.skip(f"MISSING: {what} (scripts/servers and scripts/examples install it)")


@pytest.fixture(scope="module")
def node_ts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The node in TypeScript: checked, compiled beside the tree, and how to run it."""
    node, modules = shutil.which("node"), TYPESCRIPT / "node_modules"
    if node is None:
        lacks("Node.js")
    if not (modules / "typescript").is_dir():
        lacks("the modules of examples/node-ts")
    built = tmp_path_factory.mktemp("node-ts")
    shutil.copy(TYPESCRIPT / "package.json", built)
    (built / "node_modules").symlink_to(modules)
    compiler = modules / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        [node, str(compiler), "-p", str(TYPESCRIPT), "--outDir", str(built)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return [node, str(built / "node.js")]


@pytest.fixture
async def session(server: Program) -> AsyncIterator[NodeSession]:
    async with NodeSession(server.url()) as session:
        yield session


@pytest.mark.spec("N3", "N7")
async def test_the_node_in_typescript_serves_partials_results_failures_and_cancels(
    server: Program, session: NodeSession, node_ts: list[str], tmp_path: Path
) -> None:
    with running(node_ts, server, tmp_path / "node.log") as log:
        job = session.request("reverse", {"text": "to be"}, wait_sec=20)
        assert [part async for part in job] == [{"word": "ot"}, {"word": "eb"}]
        assert await job == {"text": "eb ot"}
        with pytest.raises(NodeJobError, match="HANDLER_ERROR"):
            await session.request("reverse", 7.5, wait_sec=20)
        waiting = session.request("wait")
        assert await anext(aiter(waiting)) == "waiting"
        waiting.cancel()
        with pytest.raises(NodeJobError, match="CANCELED"):
            await waiting
        wait_for(lambda: "given up" in log.read_text(), "the handler was told")
    wait_for(lambda: not models(server), "the node has left")


@pytest.mark.spec("N3")
async def test_the_node_in_typescript_comes_back_after_the_server_was_killed(
    node_ts: list[str], tmp_path: Path
) -> None:
    with Program(tmp_path / "data") as program:
        program.start()
        with running(node_ts, program, tmp_path / "node.log") as log:
            wait_for(lambda: "registered" in log.read_text(), "it is registered")
            program.kill9()
            program.start()
            wait_for(lambda: log.read_text().count("registered") == 2, "it is back")
            async with NodeSession(program.url()) as session:
                assert await session.request("reverse", {"text": "ab"}) == {"text": "ba"}


def test_the_example_in_typescript_is_a_page_and_its_lock_names_hashes_and_no_registry() -> None:
    assert len((TYPESCRIPT / "node.ts").read_text().splitlines()) < 130
    lock = json.loads((TYPESCRIPT / "package-lock.json").read_text())
    installed = {name: one for name, one in lock["packages"].items() if name}
    assert installed
    for name, one in installed.items():
        assert one["integrity"].startswith("sha512-"), name
        assert "resolved" not in one, name
    wanted = json.loads((TYPESCRIPT / "package.json").read_text())
    for name, version in {**wanted["dependencies"], **wanted["devDependencies"]}.items():
        assert installed[f"node_modules/{name}"]["version"] == version  # exact, not a range
