"""WebSockets without a network: a connection on which the test is the server, and an address that
opens such connections one after the other."""

import asyncio
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close

from ksana.client.node_socket import FrameSocket
from ksana.client.transport import CallBackoff
from ksana.domain.nodes import frames

ASSIGNED = {"model": "m", "deadline": "2026-01-01T00:00:00Z"}


class FakeConnection:
    """The part of a `websockets` connection that is used."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_closed = False
        self.answers_pings = False
        self.may_write = asyncio.Event()
        """Unset: what is sent waits, as for a peer that does not read."""
        if not is_stuck:
            self.may_write.set()
        self._inbox: asyncio.Queue[bytes | ConnectionClosed] = asyncio.Queue()
        self._closed: ConnectionClosed | None = None

    # --- what the program calls ---

    async def recv(self) -> bytes:
        data = await self._inbox.get()
        if isinstance(data, ConnectionClosed):
            raise data
        return data

    async def send(self, data: bytes, *, text: bool) -> None:
        assert text, "frames are text"
        await self.may_write.wait()
        if self._closed is not None:
            raise self._closed
        frame = msgspec.json.decode(data)
        self.sent.append(frame)
        if self.answers_pings and frame["type"] == "ping":
            self.say(frames.Pong(id=frame["id"]))

    async def close(self) -> None:
        self.is_closed = True

    # --- what the server does ---

    def say(self, *said: msgspec.Struct | bytes) -> None:
        for one in said:
            self._inbox.put_nowait(one if isinstance(one, bytes) else frames.encode(one))

    def end(self, code: int | None = None, reason: str = "") -> None:
        """Close the socket; without a code it is cut."""
        seen = None if code is None else Close(code, reason)
        self._closed = ConnectionClosed(seen, None)
        self._inbox.put_nowait(self._closed)
        self.may_write.set()

    def sent_of(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.sent if frame["type"] == kind]

    @property
    def kinds(self) -> list[str]:
        return [frame["type"] for frame in self.sent]


class FakeAddress:
    """Takes the place of a node's or a session's address. What is told beforehand (connections or
    errors) is what opening comes to; after that there are fresh connections, on which `hello` is
    said at once and pings are answered."""

    url = "ws://h/s"
    shown = "ws://h/s"

    def __init__(self, owner: Any, *answers: FakeConnection | Exception) -> None:
        owner._address = self
        self.hello: list[msgspec.Struct] = []
        self.answers = list(answers)
        self.opened: list[FakeConnection] = []
        self.tried_at: list[float] = []
        self.passed_on = 0

    async def open(self, decoder: msgspec.json.Decoder[Any]) -> FrameSocket:
        loop = asyncio.get_running_loop()
        self.tried_at.append(round(loop.time() - 1_000, 3))
        answer = self.answers.pop(0) if self.answers else self.new()
        if isinstance(answer, Exception):
            raise answer
        self.opened.append(answer)
        return FrameSocket(answer, decoder)  # type: ignore[arg-type]

    def new(self) -> FakeConnection:
        connection = FakeConnection()
        connection.answers_pings = True
        connection.say(*self.hello)
        return connection

    def pass_on(self) -> None:
        self.passed_on += 1


class EvenBackoff(CallBackoff, frozen=True, kw_only=True):
    """Pauses without chance: a second more after each failure."""

    def pause(self, failures: int, asked_sec: float | None = None) -> float:
        return max(float(failures), asked_sec or 0.0)


def assign(job_id: str = "j", attempt_id: int = 1, payload: Any = None, **more: Any) -> Any:
    """A job for the node."""
    data = msgspec.Raw(msgspec.json.encode({} if payload is None else payload))
    members = {**ASSIGNED, "job_id": job_id, "attempt_id": attempt_id, "payload": data, **more}
    return frames.JobAssign(**members)


def node_ack(node_id: str = "n", heartbeat_sec: float = 15.0) -> frames.NodeRegisterAck:
    return frames.NodeRegisterAck(
        node_id=node_id,
        instance_id="i",
        heartbeat_sec=heartbeat_sec,
        dead_after_sec=45.0,
        durable=False,
    )


def session_ack(session_id: str = "s") -> frames.SessionInitAck:
    return frames.SessionInitAck(session_id=session_id, instance_id="i", durable=False)
