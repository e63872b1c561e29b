"""The examples of nodes, in two languages, against a real server."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from ksana.client import NodeJobError, NodeSession
from tests.ground.child import wait_for
from tests.ground.pages import ROOT
from tests.ground.process import Program, clean_environment

FOLDER = ROOT / "examples" / "nodes"


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


@pytest.fixture
def node_js() -> list[str]:
    """How this machine's Node runs the example: before 22 its WebSocket is behind a flag."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("needs Node.js")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(re.match(r"v(\d+)", said)[1])  # type: ignore[index]
    if major < 20:
        pytest.skip("needs Node.js 20 or later")
    return [found, *(["--experimental-websocket"] if major < 22 else [])]


@pytest.fixture
async def session(server: Program) -> AsyncIterator[NodeSession]:
    async with NodeSession(server.url()) as session:
        yield session


@pytest.mark.spec("N3", "N7")
async def test_the_node_in_javascript_serves_partials_results_failures_and_cancels(
    server: Program, session: NodeSession, node_js: list[str], tmp_path: Path
) -> None:
    with running([*node_js, str(FOLDER / "node.mjs")], server, tmp_path / "node.log") as log:
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
async def test_the_node_in_javascript_comes_back_after_the_server_was_killed(
    node_js: list[str], tmp_path: Path
) -> None:
    with Program(tmp_path / "data") as program:
        program.start()
        with running([*node_js, str(FOLDER / "node.mjs")], program, tmp_path / "node.log") as log:
            wait_for(lambda: "registered" in log.read_text(), "it is registered")
            program.kill9()
            program.start()
            wait_for(lambda: log.read_text().count("registered") == 2, "it is back")
            async with NodeSession(program.url()) as session:
                assert await session.request("reverse", {"text": "ab"}) == {"text": "ba"}


def test_the_example_in_javascript_is_a_page_and_needs_no_package() -> None:
    text = (FOLDER / "node.mjs").read_text()
    assert len(text.splitlines()) < 130
    assert "import " not in re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    assert "require(" not in text
