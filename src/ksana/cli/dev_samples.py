"""What lives in `ksana dev`: tasks, and whom they call; a worker, a node and a governor. They know
the public API only."""

import asyncio
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, Final
from urllib.request import Request, urlopen

from ksana.base.clock import SystemClock
from ksana.base.instant import MILLISECOND, SECOND, Micros, format_instant
from ksana.client import Governor, Node, NodeJobContext, Retry, Worker
from ksana.client.context import JobContext
from ksana.client.governance_context import GovernanceContext

_SLOW_SEC: Final = 4.0
_CALL_SEC: Final = 5.0
_TRIES: Final = 300
_random = Random()


def sample_tasks(target: str) -> list[dict[str, Any]]:
    """Tasks of every type, with every kind of end."""

    def every(span: str) -> dict[str, str]:
        return {"kind": "every", "every": span}

    return [
        {
            "name": "pulse",
            "schedule": every("2s"),
            "target_url": f"{target}/pulse",
            "tags": ["demo"],
        },
        {
            "name": "flaky import",
            "schedule": every("5s"),
            "target_url": f"{target}/fails",
            "retry_policy": {"max_retries": 1, "initial_delay": 1},
            "tags": ["demo", "import"],
            "description": "Its target answers 503, so that there are failures to group and retry.",
        },
        {
            "name": "slow sync",
            "schedule": every("3s"),
            "target_url": f"{target}/slow",
            "concurrency_policy": "SKIP",
            "tags": ["demo"],
            "description": "Takes longer than its interval: slots are skipped, and explained.",
        },
        {
            "name": "nightly report",
            "schedule": {"kind": "cron", "expr": "30 2 * * 1-5", "timezone": "Asia/Shanghai"},
            "target_url": f"{target}/report",
            "http_method": "POST",
            "body_template": '{"run":"{{run_uid}}"}',
            "tags": ["reports"],
        },
        {
            "name": "thumbnails",
            "schedule": every("2s"),
            "type": "queue",
            "queue": {
                "addon_id": "media",
                "job_type": "thumbnail",
                "cost_units": 15,
                "payload": {"picture": "{{run_uid}}.jpg"},
            },
            "concurrency_policy": "PARALLEL",
            "max_concurrency": 20,
            "tags": ["demo", "media"],
        },
        {
            "name": "captions",
            "schedule": every("4s"),
            "type": "node",
            "node": {"model": "captions", "payload": {"text": "{{scheduled_at}}"}},
            "tags": ["demo", "media"],
        },
    ]


def serve_target() -> str:
    """Start an HTTP server that answers, fails or takes its time, by the path. Answer its
    address."""
    never = threading.Event()

    class Target(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path == "/slow":
                never.wait(_SLOW_SEC)
            body = json.dumps({"path": self.path}).encode()
            self.send_response(503 if self.path == "/fails" else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def live(address: str, target: str) -> None:
    """Wait for the server, make the samples, and work until the process ends."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_live(address, target))


async def _live(address: str, target: str) -> None:
    clock = SystemClock()
    for _ in range(_TRIES):
        if await asyncio.to_thread(_is_ready, address):
            break
        await _sleep(clock, 100 * MILLISECOND)
    await asyncio.to_thread(_make_samples, address, target, clock)
    worker, node, governor = make_worker(address, clock), make_node(address), make_governor(address)
    await asyncio.gather(worker.run(), node.run(), governor.run())


def make_worker(address: str, clock: SystemClock) -> Worker:
    """A worker whose jobs take a few seconds and tell how far they are."""
    worker = Worker(address, "media", "dev-worker", concurrency=4, grace_sec=1.0)

    @worker.job("thumbnail")
    async def make_thumbnail(ctx: JobContext) -> dict[str, str]:
        for step in range(1, 5):
            await _sleep(clock, _random.randrange(100, 1200) * MILLISECOND)
            ctx.progress(step / 4, f"step {step} of 4")
        return {"picture": ctx.payload["picture"]}

    return worker


def make_node(address: str) -> Node:
    """A node that serves one model."""
    node = Node(address, "dev-node", slots=4, labels={"zone": "a"}, grace_sec=1.0)

    @node.model("captions")
    async def caption(ctx: NodeJobContext) -> dict[str, Any]:
        return {"caption": ctx.payload}

    return node


def make_governor(address: str) -> Governor:
    """A governor that looks after objects, not always with success."""
    governor = Governor(address, "dev-governor", concurrency=2, grace_sec=1.0)

    @governor.action("verify")
    async def verify(ctx: GovernanceContext) -> None:
        if ctx.object_id.endswith("3"):
            raise Retry("the source could not be read")

    return governor


def _make_samples(address: str, target: str, clock: SystemClock) -> None:
    for task in sample_tasks(target):
        made = _post(f"{address}/api/v1/tasks", task)
        _post(f"{address}/api/v1/tasks/{made['id']}/trigger", {})
    now = clock.now()
    for number in range(6):
        run_at = format_instant(now + number * 10 * SECOND)
        job = {"object_type": "memory", "object_id": f"mem_{number}", "action": "verify"}
        _post(
            f"{address}/scheduler/jobs",
            {**job, "run_at": run_at, "max_attempts": 1, "allow_past": True},
        )


async def _sleep(clock: SystemClock, span: Micros) -> None:
    await clock.sleep_until(clock.now() + span)


def _is_ready(address: str) -> bool:
    try:
        with urlopen(f"{address}/readyz", timeout=_CALL_SEC) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _post(url: str, body: dict[str, Any]) -> Any:
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=_CALL_SEC) as answer:
        return json.load(answer)
