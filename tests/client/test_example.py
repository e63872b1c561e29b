"""The worked example does what it says."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ksana.client import QueueClient, WorkerTester
from tests.client.fake_queue import FakeQueue

FOLDER = Path(__file__).parents[2] / "examples" / "queue_worker"


def load(name: str, monkeypatch: pytest.MonkeyPatch, url: str = "http://127.0.0.1:1") -> ModuleType:
    monkeypatch.setenv("KSANA_URL", url)
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


async def test_its_handlers_can_be_tried_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    tester = WorkerTester(load("worker", monkeypatch).worker)
    tried = await tester.run_one("render_image", {"prompt": "a lake"})
    assert (tried.status, tried.metrics) == ("SUCCEEDED", {"pixels": 262_144})
    assert tried.reports[-1] == (1.0, "step 20 of 20")
    assert (
        await tester.run_one("render_image", {"prompt": ""})
    ).error == "a picture needs a prompt"
    assert (
        await tester.run_one("render_image", {"prompt": "a lake"}, cancel_on_report=2)
    ).status == "CANCELED"
    assert (await tester.run_one("count_words", {"text": "to be"})).result == {"words": 2}
    assert (await tester.run_one("count_words", {})).error == "the text is not there yet"


async def test_its_worker_stays_within_the_capacity(
    server: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.capacity = 3
    most = 0
    async with QueueClient(server.url) as client:
        for number in range(8):
            await client.submit("visuals", "render_image", {"prompt": f"take {number}"})
    example = load("worker", monkeypatch, server.url)
    example.worker.wait_sec = 0.1
    tick = example.asyncio.sleep

    async def watch(pause_sec: float) -> None:
        nonlocal most
        most = max(most, example.worker.running)
        await tick(pause_sec)

    monkeypatch.setattr(example, "asyncio", type("Asyncio", (), {"sleep": staticmethod(watch)}))
    await example.worker.run(burst=True)
    assert most == 3
    assert server.states() == {"DONE": 8}
