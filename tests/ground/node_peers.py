"""Nodes and sessions as programs outside speak: plain JSON over WebSocket, nothing of ours."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException


class EchoNode:
    """Serves a model by answering what it was sent. Comes back when its socket ends."""

    def __init__(
        self,
        find_port: Callable[[], int],
        node_id: str,
        slots: int = 8,
        model: str = "echo",
        work_sec: float = 0.0,
    ) -> None:
        self._find_port = find_port
        self.node_id = node_id
        self._slots = slots
        self._model = model
        self._work_sec = work_sec
        self.running: set[str] = set()
        self.most_at_once = 0
        self.done = 0
        self.is_ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._live())

    async def stop(self) -> None:
        for task in (self._task, *self._jobs):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _live(self) -> None:
        while True:
            # Refused too: a server that has just started does not take sockets yet.
            with contextlib.suppress(OSError, WebSocketException):
                url = f"ws://127.0.0.1:{self._find_port()}/ws/node"
                async with connect(url, max_queue=None) as socket:
                    await self._serve(socket)
            self.is_ready.clear()
            self.running.clear()
            await asyncio.sleep(0.1)

    async def _serve(self, socket: ClientConnection) -> None:
        register = {
            "type": "node_register",
            "node_id": self.node_id,
            "slots": self._slots,
            "models": [self._model],
        }
        await socket.send(json.dumps(register))
        async for text in socket:
            frame = json.loads(text)
            if frame["type"] == "node_register_ack":
                self.is_ready.set()
            elif frame["type"] == "ping":
                await socket.send(json.dumps({"type": "pong", "id": frame["id"]}))
            elif frame["type"] == "job_cancel":
                self.running.discard(frame["job_id"])
            elif frame["type"] == "job_assign":
                self.running.add(frame["job_id"])
                self.most_at_once = max(self.most_at_once, len(self.running))
                task = asyncio.create_task(self._work(socket, frame))
                self._jobs.add(task)
                task.add_done_callback(self._jobs.discard)

    async def _work(self, socket: ClientConnection, job: dict[str, Any]) -> None:
        about = {"job_id": job["job_id"], "attempt_id": job["attempt_id"]}
        with contextlib.suppress(ConnectionClosed):
            await socket.send(json.dumps({"type": "job_ack", **about}))
            if self._work_sec:
                await asyncio.sleep(self._work_sec)
            self.running.discard(job["job_id"])
            result = {"type": "job_result", **about, "success": True, "data": job["payload"]}
            await socket.send(json.dumps(result))
            self.done += 1


class PlainSession:
    """Asks for jobs and keeps what comes."""

    def __init__(self, port: int, session_id: str | None = None) -> None:
        self._url = f"ws://127.0.0.1:{port}/ws/session"
        self._session_id = session_id
        self.results: dict[str, list[dict[str, Any]]] = {}
        self.errors: list[dict[str, Any]] = []
        self.ended = 0
        self._news = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "PlainSession":
        self._socket = await connect(self._url, max_queue=None)
        init = {"type": "session_init"}
        if self._session_id:
            init["session_id"] = self._session_id
        await self._socket.send(json.dumps(init))
        assert json.loads(await self._socket.recv())["type"] == "session_init_ack"
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        assert self._socket is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._socket.close()

    async def ask(self, request_id: str, **members: Any) -> None:
        assert self._socket is not None
        frame = {"type": "job_request", "model": "echo", "request_id": request_id, **members}
        await self._socket.send(json.dumps(frame))

    async def wait(self, count: int, within_s: float) -> None:
        """Wait until so many requests have ended."""
        async with asyncio.timeout(within_s):
            while self.ended < count:
                self._news.clear()
                await self._news.wait()

    async def _read(self) -> None:
        assert self._socket is not None
        async for text in self._socket:
            frame = json.loads(text)
            if frame["type"] == "job_result":
                told = self.results.setdefault(frame["request_id"], [])
                told.append(frame)
                self.ended += len(told) == 1
            elif frame["type"] == "error":
                self.errors.append(frame)
                self.ended += 1
            elif frame["type"] == "ping":
                await self._socket.send(json.dumps({"type": "pong", "id": frame["id"]}))
            self._news.set()
