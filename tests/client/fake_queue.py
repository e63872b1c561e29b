"""A small server that speaks the Queue surface from memory, on a real port, and fails on command.

It keeps the rules a client depends on: a job has one holder, a lease that is over is refused, the
same release again is answered the same, a request id makes one job. Its state outlives `stop` and
`start`, as a server's store does.
"""

import asyncio
import contextlib
import itertools
import json
import ssl
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from ksana.base.ids import new_uuid

NOW = "2026-01-01T00:00:00Z"
FINAL = {"SUCCEEDED": "DONE", "FAILED": "FAILED", "CANCELED": "CANCELED", "TIMEOUT": "TIMEOUT"}


class Refused(Exception):
    def __init__(self, status: int, code: str, **extra: Any) -> None:
        super().__init__(code)
        self.status = status
        self.body = {
            "code": code,
            "message": f"refused: {code}",
            "detail": f"refused: {code}",
            "request_id": "r-1",
            **extra,
        }


class Fault:
    """Strikes calls whose path contains `path`, `times` times. `lost` acts and cuts, `cut` cuts,
    `silent` never answers, an integer answers that status; `struck` tells how often it has
    happened."""

    def __init__(self, path: str, kind: str | int, times: int) -> None:
        self.path, self.kind, self.times = path, kind, times
        self.struck = asyncio.Semaphore(0)


class FakeQueue:
    """The server. `async with FakeQueue() as server`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.jobs: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.releases: dict[str, dict[str, Any]] = {}
        self.accepted: list[str] = []
        """Job ids whose result was taken, in order; a job twice in it is a doubled result."""
        self.calls: list[tuple[str, Any]] = []
        self.heads: list[str] = []
        self.faults: list[Fault] = []
        self.capacity = 1_000
        self.port = 0
        self.connections = 0
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._counter = itertools.count()

    # ---------------------------------------------------------------------------------- life and faults

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
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
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

    # ---------------------------------------------------------------------------------- HTTP

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
                    return 200, {"job": self._job(job_id) | {"state": body["state"]}}
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

    # ---------------------------------------------------------------------------------- the queue

    def _submit(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body.get("client_request_id")
        for job in self.jobs.values():
            if asked is not None and job.get("client_request_id") == asked:
                raise Refused(409, "DUPLICATE_REQUEST", job=job)
        if body["cost_units"] < 1:
            raise Refused(400, "INVALID_ARGUMENT", field="cost_units")
        job = {
            "priority": "NORMAL",
            "constraints": {},
            "payload": None,
            "max_attempts": 1,
            "client_request_id": None,
            **body,
            "job_id": new_uuid(),
            "state": "QUEUED",
            "created_at": NOW,
            "updated_at": NOW,
            "claimed_by": None,
            "lease_id": None,
            "attempts": 0,
            "cancel_requested": False,
            "order": next(self._counter),
            "a_later_member": [1],
        }
        self.jobs[job["job_id"]] = job
        return job

    def _submit_batch(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        known = {job["client_request_id"] for job in self.jobs.values()} - {None}
        for index, body in enumerate(bodies):
            if body.get("client_request_id") in known:
                raise Refused(409, "DUPLICATE_REQUEST", index=index)
        return [self._submit(body) for body in bodies]

    async def _claim(self, body: dict[str, Any]) -> tuple[int, Any]:
        found = self._take(body)
        if not found and body.get("wait_sec"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(body["wait_sec"]), self._changed:
                    await self._changed.wait_for(lambda: bool(self._eligible(body)))
            found = self._take(body)
        if not found:
            return 204, None
        return 200, {"job": found[0], **({"jobs": found} if body["limit"] > 1 else {})}

    def _eligible(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        types = body.get("accept_job_types")
        used = sum(lease["state"] == "ACTIVE" for lease in self.leases.values())
        room = min(body["limit"], self.capacity - used) if body.get("lease") else body["limit"]
        ready = (
            job
            for job in self.jobs.values()
            if job["state"] == "QUEUED"
            and job["addon_id"] == body["addon_id"]
            and (types is None or job["job_type"] in types)
        )
        return list(itertools.islice(ready, max(0, room)))

    def _take(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        found = self._eligible(body)
        for job in found:
            job |= {"state": "CLAIMED", "claimed_by": body["worker_id"]}
            if body.get("lease"):
                self._grant(job, body["ttl_sec"])
        return found

    def _grant(self, job: dict[str, Any], ttl_sec: int) -> dict[str, Any]:
        lease = {
            "lease_id": new_uuid(),
            "job_id": job["job_id"],
            "state": "ACTIVE",
            "ttl_sec": ttl_sec,
            "granted_at": NOW,
        }
        self.leases[lease["lease_id"]] = lease
        job |= {"state": "RUNNING", "lease_id": lease["lease_id"], "attempts": job["attempts"] + 1}
        return lease

    def _request(self, body: dict[str, Any]) -> dict[str, Any]:
        job = self._job(body["job_id"])
        if job["state"] == "RUNNING":
            return {"approved": True, "lease": self.leases[job["lease_id"]]}
        if sum(lease["state"] == "ACTIVE" for lease in self.leases.values()) >= self.capacity:
            return {
                "approved": False,
                "retry_after_sec": 10,
                "reason": "Capacity exceeded",
                "position": 1,
                "holders": [],
            }
        return {"approved": True, "lease": self._grant(job, body["ttl_sec"])}

    def _active(self, lease_id: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        lease = self._lease(lease_id)
        job = self.jobs[lease["job_id"]]
        if lease["state"] != "ACTIVE" or job["claimed_by"] != body["worker_id"]:
            raise Refused(409, "LEASE_LOST", current={"state": lease["state"]})
        return lease, job

    def _beat(self, lease_id: str, body: dict[str, Any]) -> dict[str, Any]:
        lease, job = self._active(lease_id, body)
        lease["beats"] = lease.get("beats", 0) + 1
        job |= {name: body[name] for name in ("progress", "message") if name in body}
        return {"lease": lease, "job": job}

    def _release(self, lease_id: str, body: dict[str, Any]) -> dict[str, Any]:
        told = {name: value for name, value in body.items() if name != "lease_id"}
        if lease_id in self.releases and self.releases[lease_id] == told:
            job = self.jobs[self.leases[lease_id]["job_id"]]
            return {
                "lease": self.leases[lease_id],
                "job": job,
                "result": self.results[job["job_id"]],
            }
        lease, job = self._active(lease_id, body)
        if "poison" in str(body.get("result_data")):
            raise Refused(400, "INVALID_ARGUMENT", field="result_data")
        lease["state"] = "RELEASED"
        job["state"] = FINAL[body["status"]]
        if body["status"] == "FAILED" and job["attempts"] < job["max_attempts"]:
            job["state"] = "QUEUED"
        self.releases[lease_id] = told
        self.accepted.append(job["job_id"])
        self.results[job["job_id"]] = {
            "job_id": job["job_id"],
            "status": body["status"],
            "result_data": body.get("result_data"),
            "error": body.get("error"),
            "metrics": body.get("metrics"),
            "attempts": job["attempts"],
        }
        return {"lease": lease, "job": job, "result": self.results[job["job_id"]]}

    def _cancel(self, job_id: str) -> dict[str, Any]:
        job = self._job(job_id)
        if job["state"] in FINAL.values():
            raise Refused(409, "ILLEGAL_TRANSITION", current={"state": job["state"]})
        job |= {"cancel_requested": True} if job["state"] == "RUNNING" else {"state": "CANCELED"}
        return job

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        kept = [
            job
            for job in self.jobs.values()
            if all(
                job[name] == query[name]
                for name in ("state", "addon_id", "job_type")
                if name in query
            )
            and job["order"] >= int(query.get("cursor", 0))
        ]
        limit = int(query["limit"])
        return {
            "jobs": kept[:limit],
            "next_cursor": str(kept[limit]["order"]) if len(kept) > limit else None,
        }

    def _job(self, job_id: str) -> dict[str, Any]:
        if job_id not in self.jobs:
            raise Refused(404, "NOT_FOUND")
        return self.jobs[job_id]

    def _lease(self, lease_id: str) -> dict[str, Any]:
        if lease_id not in self.leases:
            raise Refused(404, "NOT_FOUND")
        return self.leases[lease_id]


def _caught(act: Any, lease_id: str, item: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = act(lease_id, item)
    except Refused as refused:
        return refused.body
    return found
