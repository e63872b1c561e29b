"""The walks of docs/internals/tour.md, taken from a running server: `python -m tests.ground.walks`.

A server of one process on a new SQLite file fires a timer, answers a claim and takes a callback.
The functions of ours that ran meanwhile are written into the page, by file, in the order of their
first call. Each has been done once before, so that nothing is opened or looked up for the first
time. Each is recorded three times, and what did not run every time is left out, with constructors
and what repeats by itself (signs of life, watches): a loop that happened to look meanwhile is no
step of the walk.
"""

import asyncio
import re
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, Final

import httpx

from ksana.boot.listening import listen
from ksana.boot.server import KsanaServer
from ksana.boot.settings.sources import load
from tests.ground.child import free_port
from tests.ground.pages import DOCS
from tests.ground.target import Answer, Target

TOUR: Final = DOCS / "internals" / "tour.md"
_BACKGROUND: Final = (
    "ksana.engine.core.membership",
    "ksana.engine.core.clock_watch",
    "ksana.engine.core.retention",
    "ksana.engine.core.supervisor",
)
"""What runs all the time. Whatever they call is left out too."""

_OTHERS: Final = (
    "ksana.engine.governance.",
    "ksana.service.governance.",
    "ksana.engine.nodes.",
    "ksana.service.nodes.",
    "ksana.fabric.",
    "ksana.boot.surfaces.nodes",
    "ksana.boot.surfaces.governance",
)
"""Surfaces that none of the walks goes through, and whose loops run meanwhile."""

WALKS: Final = {
    "firing": ("ksana.api.", "ksana.service.queue.", "ksana.engine.queue.", *_OTHERS),
    "claim": ("ksana.service.tasks.", "ksana.engine.tasks.", *_OTHERS),
    "callback": ("ksana.service.queue.", "ksana.engine.queue.", *_OTHERS),
}
"""The walks, each with what has nothing to do with it."""

TIMES: Final = 3
_PATIENCE_SEC: Final = 20.0
_CORE: Final = re.compile(r"ksana\.(base|boot|[a-z.]+\.core)\b")

Walk = list[tuple[str, str]]
"""(module, qualified name) in the order of the first call."""


class Recorder:
    """Notes which functions of the package run, in any thread, while it is switched on."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] | None = None
        self._aside: tuple[str, ...] = ()

    def install(self) -> None:
        """Must come before the threads that are to be watched."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        seen = self._seen
        if seen is None or event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        step = (module, frame.f_code.co_qualname)
        if module.startswith("ksana.") and step not in seen and not self._is_aside(frame):
            seen[step] = None

    def _is_aside(self, frame: FrameType | None) -> bool:
        """Whether it, or what called it, has nothing to do with the walk."""
        is_first = True
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            # Every loop is called by the supervisor, so that counts for its own functions only.
            if module.startswith(self._aside) and (is_first or module != _BACKGROUND[-1]):
                return True
            frame, is_first = frame.f_back, False
        return False

    async def record(self, name: str, once: Callable[[], Awaitable[None]]) -> Walk:
        """Do it three times; what ran every time."""
        walks: list[Walk] = []
        for _ in range(TIMES):
            with self.recording(name) as walk:
                await once()
            walks.append(walk)
            await asyncio.sleep(0.2)  # what it left to do is done
        return [step for step in walks[0] if all(step in walk for walk in walks)]

    @contextmanager
    def recording(self, name: str) -> Iterator[Walk]:
        """Collect into the list that is given; complete when the block ends."""
        walk: Walk = []
        seen: dict[tuple[str, str], None] = {}
        self._aside, self._seen = (*_BACKGROUND, *WALKS[name]), seen
        try:
            yield walk
        finally:
            self._seen = None
        walk += [step for step in seen if _has_name(step[1])]


def _has_name(function: str) -> bool:
    return "<" not in function and not function.rpartition(".")[2].startswith("__")


@asynccontextmanager
async def serving() -> AsyncIterator[httpx.AsyncClient]:
    """A server on a new store, and a client of it."""
    with tempfile.TemporaryDirectory() as folder:
        flags = {"server.port": str(free_port()), "store.data_dir": folder}
        settings = load(flags, {}).settings
        server = KsanaServer(settings)
        listener = listen(settings.server.host, settings.server.port)
        running = asyncio.create_task(server.run(listener))
        base = f"http://127.0.0.1:{settings.server.port}"
        async with httpx.AsyncClient(base_url=base) as client:
            await _until(lambda: server.readiness() and all(c.ok for c in server.readiness()))
            yield client
        server.begin_stop()
        await running


async def _until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(_PATIENCE_SEC):
        while not is_so():
            await asyncio.sleep(0.01)


async def take_walks() -> dict[str, Walk]:
    """Do each thing, then record it."""
    recorder = Recorder()
    recorder.install()
    walks: dict[str, Walk] = {}
    with Target() as target:
        async with serving() as client:
            walks["firing"] = await _fire(client, target, recorder)
            walks["claim"] = await _claim(client, recorder)
            walks["callback"] = await _call_back(client, target, recorder)
    sys.setprofile(None)
    threading.setprofile(None)
    return walks


async def _fire(client: httpx.AsyncClient, target: Target, recorder: Recorder) -> Walk:
    timer = {
        "http": {"method": "POST", "url": target.url("/timer")},
        "schedule": {"kind": "every", "every": "1s"},
    }
    made = (await client.post("/jobs", json=timer)).raise_for_status().json()
    await _until(lambda: len(target.requests("/timer")) == 1)
    await asyncio.sleep(0.5)  # halfway to the next slot: the first firing is over

    async def wait() -> None:
        seen = len(target.requests("/timer"))
        await _until(lambda: len(target.requests("/timer")) == seen + 1)
        await asyncio.sleep(0.2)  # its outcome is recorded by then; a request would be seen

    walk = await recorder.record("firing", wait)
    (await client.delete(f"/jobs/{made['id']}")).raise_for_status()
    return walk


async def _claim(client: httpx.AsyncClient, recorder: Recorder) -> Walk:
    job = {"addon_id": "tour", "job_type": "walk", "cost_units": 1}
    asked = {"worker_id": "w", "addon_id": "tour", "accept_job_types": ["walk"]}
    for _ in range(1 + TIMES):
        (await client.post("/api/scheduler/jobs/submit", json=job)).raise_for_status()

    async def claim() -> None:
        (await client.post("/api/scheduler/jobs/claim", json=asked)).raise_for_status()

    await claim()
    await asyncio.sleep(0.2)  # what the first left to do is done
    return await recorder.record("claim", claim)


async def _call_back(client: httpx.AsyncClient, target: Target, recorder: Recorder) -> Walk:
    target.on("/task", Answer(202))
    task = {
        "name": "tour",
        "target_url": target.url("/task"),
        "http_method": "POST",
        "exec_type": "ASYNC",
        "cron_expr": "0 0 1 1 *",
        "concurrency_policy": "PARALLEL",
    }
    made = (await client.post("/api/v1/tasks", json=task)).raise_for_status().json()
    tokens: list[str] = []
    for count in range(1, 2 + TIMES):
        (await client.post(f"/api/v1/tasks/{made['id']}/trigger")).raise_for_status()
        await _until(lambda count=count: len(target.requests("/task")) == count)  # type: ignore[misc]
        tokens.append(target.requests("/task")[-1].headers["x-callback-token"])
    await asyncio.sleep(0.2)  # the runs wait for their callbacks by then

    async def call_back() -> None:
        sent = await client.post(f"/api/v1/callbacks/{tokens.pop()}", json={"status": "SUCCESS"})
        sent.raise_for_status()

    await call_back()
    await asyncio.sleep(0.2)  # what the first left to do is done
    return await recorder.record("callback", call_back)


def render(walk: Walk) -> str:
    """The walk as a table by file, with its counts."""
    by_file: dict[str, list[str]] = {}
    for module, function in walk:
        by_file.setdefault(module, []).append(function)
    rows = [
        f"| `{module}` | {' '.join(f'`{name}`' for name in names)} |"
        for module, names in by_file.items()
    ]
    own = [name for name in by_file if not _CORE.match(name)]
    head = (
        f"{len(walk)} functions in {len(by_file)} files; without the core of the floors, "
        f"{sum(len(by_file[name]) for name in own)} in {len(own)}."
    )
    return "\n".join([head, "", "| module | functions |", "|---|---|", *rows])


def replace_walk(page: str, name: str, text: str) -> str:
    """The page with one walk made anew."""
    begin, end = f"<!-- walk {name}: begin -->", f"<!-- walk {name}: end -->"
    part = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert len(part.findall(page)) == 1, f"the page has one walk {name}"
    return part.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page)


def main() -> None:
    """Write the walks into the page."""
    page = TOUR.read_text(encoding="utf-8")
    for name, walk in asyncio.run(take_walks()).items():
        page = replace_walk(page, name, render(walk))
        sys.stdout.write(f"{name}: {render(walk).splitlines()[0]}\n")
    TOUR.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
