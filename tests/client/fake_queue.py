"""A small server that speaks the Queue surface from memory, on a real port, and fails on command.

Its rules are in `fake_rules`. Its state outlives `stop` and `start`, as a server's store does.
"""

import asyncio
import contextlib
import json
import ssl
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.client.fake_rules import NOW, FakeRules, Refused
from tests.ground.background import stop_listening


class Fault:
    """Strikes calls whose path contains `path`, `times` times. `lost` acts and cuts, `cut` cuts,
    `silent` never answers, an integer answers that status; `struck` tells how often it has
    happened."""

    def __init__(self, path: str, kind: str | int, times: int) -> None:
        self.path, self.kind, self.times = path, kind, times
        self.struck = asyncio.Semaphore(0)


class FakeQueue(FakeRules):
    """The server. `async with FakeQueue() as server`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.tls = tls
        self.calls: list[tuple[str, Any]] = []
        self.heads: list[str] = []
        self.faults: list[Fault] = []
        self.port = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- life and faults ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Go away with all connections; state stays."""
        if self._server is not None:
            await stop_listening(self._server)
            for writer in list(self._writers):
                writer.transport.abort()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            await asyncio.sleep(0)  # what was aborted ends in the next turn
            self._server = None

    def fail(self, path: str, kind: str | int, times: int = 1) -> Fault:
        fault = Fault(path, kind, times)
        self.faults.append(fault)
        return fault

    def expire(self, lease_id: str) -> None:
        """Let a lease run out now."""
        self.leases[lease_id]["state"] = "EXPIRED"
        self.jobs[self.leases[lease_id]["job_id"]]["state"] = "TIMEOUT"

    async def until(self, is_so: Any, within_sec: float = 10.0) -> None:
        """Wait until a fact holds, looking whenever a call comes or has been acted on."""
        async with asyncio.timeout(within_sec), self._changed:
            await self._changed.wait_for(is_so)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def count(self, path: str) -> int:
        return sum(path in called for called, _ in self.calls)

    def states(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in self.jobs.values():
            found[job["state"]] = found.get(job["state"], 0) + 1
        return found

    def add(self, job_type: str = "work", *, count: int = 1, **members: Any) -> list[str]:
        """Put jobs into the queue without a call."""
        made = [
            self._submit({"addon_id": "shop", "job_type": job_type, "cost_units": 1, **members})
            for _ in range(count)
        ]
        return [job["job_id"] for job in made]

    # --- HTTP ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(
                asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError
            ):
                while await self._answer_one(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        length = next(
            (
                int(line[15:])
                for line in head.split("\r\n")
                if line.lower().startswith("content-length:")
            ),
            0,
        )
        body = json.loads(await reader.readexactly(length)) if length else None
        self.heads.append(head)
        self.calls.append((target, body))
        await self._tell()
        fault = next((fault for fault in self.faults if fault.times and fault.path in target), None)
        kind = fault.kind if fault else None
        status, answer, extra = 200, None, ""
        if fault is not None:
            fault.times -= 1
        if isinstance(kind, int):
            status, answer, extra = (
                kind,
                {"code": "STORE_DOWN", "message": "no", "detail": "no"},
                "Retry-After: 0\r\n",
            )
        elif kind not in {"cut", "silent"}:
            status, answer = await self._act(method, target, body)
        if fault is not None:
            fault.struck.release()
        await self._tell()
        if kind == "silent":
            await reader.read()
        if kind in {"lost", "cut", "silent"}:
            return False
        data = b"" if status == 204 else json.dumps(answer).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n{extra}\r\n".encode() + data
        )
        await writer.drain()
        return True

    async def _act(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        words = parts.path.removeprefix("/api/scheduler/").split("/")
        try:
            match method, words:
                case "POST", ["jobs", "submit"]:
                    return 201, {"job": self._submit(body)}
                case "POST", ["jobs", "submit-batch"]:
                    return 201, {"jobs": self._submit_batch(body["jobs"])}
                case "POST", ["jobs", "claim"]:
                    return await self._claim(body)
                case "POST", ["lease", "heartbeat-batch" | "release-batch" as name]:
                    act = self._beat if name.startswith("heartbeat") else self._release
                    return 200, {
                        "results": [_caught(act, item["lease_id"], item) for item in body["items"]]
                    }
                case "POST", ["lease", lease_id, "heartbeat"]:
                    return 200, self._beat(lease_id, body)
                case "POST", ["lease", lease_id, "release"]:
                    return 200, self._release(lease_id, body)
                case "POST", ["lease", "request"]:
                    return 200, self._request(body)
                case "GET", ["lease", lease_id]:
                    return 200, {"lease": self._lease(lease_id)}
                case "POST", ["jobs", job_id, "cancel"]:
                    return 200, {"job": self._cancel(job_id)}
                case "POST", ["jobs", job_id, "status"]:
                    return 200, {"job": self._set_status(job_id, body)}
                case "GET", ["jobs"]:
                    return 200, self._list(query)
                case "GET", ["jobs", job_id]:
                    return 200, {"job": self._job(job_id), "result": self.results.get(job_id)}
                case "GET", ["jobs", job_id, "events"]:
                    return 200, {
                        "events": [
                            {"ts": NOW, "type": "JOB_SUBMITTED", "data": {"priority": "NORMAL"}}
                        ]
                    }
                case "GET", ["jobs", job_id, "explain"]:
                    return 200, {"job_id": job_id, "reasons": ["WAITING"]}
                case "GET", ["stats", "snapshot"]:
                    return 200, {
                        "capacity": {"total": 70, "used": 60, "reserved": 0},
                        "jobs": {"queued": 4},
                        "leases": {"active": 2},
                    }
                case "GET", ["stats", "timeseries"]:
                    return 200, {
                        "metric": query["metric"],
                        "bucket": query["bucket"],
                        "points": [{"ts": NOW, "value": 1}],
                    }
            raise Refused(404, "NOT_FOUND")
        except Refused as refused:
            return refused.status, refused.body


def _caught(act: Any, lease_id: str, item: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = act(lease_id, item)
    except Refused as refused:
        return refused.body
    return found
