"""Thousands of nodes in one process, on bare sockets: no library, a few hundred bytes each. They
register, answer pings, and come back at once when their connection ends, as real ones do after a
restart of the server, only without any pause to be kind."""

import asyncio
import base64
import json
import os
import struct
from functools import partial
from typing import Final, cast

TEXT: Final = 1
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10


def mask_frame(opcode: int, payload: bytes) -> bytes:
    """A frame as a client sends it. The mask is zero: it is there for proxies, and none is here."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65_536:
        head = bytes((0x80 | opcode, 0x80 | 126)) + struct.pack(">H", size)
    else:
        head = bytes((0x80 | opcode, 0x80 | 127)) + struct.pack(">Q", size)
    return head + b"\0\0\0\0" + payload


class SwarmNode(asyncio.Protocol):
    """One connection."""

    def __init__(self, swarm: "NodeSwarm", number: int) -> None:
        self._swarm = swarm
        self._number = number
        self._buffer = b""
        self._is_open = False
        self._transport: asyncio.Transport | None = None
        self.is_registered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        key = base64.b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET /ws/node HTTP/1.1\r\nHost: 127.0.0.1:{self._swarm.port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def connection_lost(self, _: Exception | None) -> None:
        self._swarm.lost(self._number, self)

    def send(self, frame: dict[str, object]) -> None:
        assert self._transport is not None
        self._transport.write(mask_frame(TEXT, json.dumps(frame).encode()))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._swarm.refused.append(head.split(b"\r\n")[0].decode())
                self.close()
                return
            self._is_open, self._buffer = True, rest
            self.send(
                {
                    "type": "node_register",
                    "node_id": f"swarm-{self._number}",
                    "slots": 2,
                    "models": ["swarm"],
                }
            )
        while len(self._buffer) >= 2:
            size, start = self._buffer[1] & 127, 2
            if size == 126:
                if len(self._buffer) < 4:
                    return
                size, start = struct.unpack(">H", self._buffer[2:4])[0], 4
            if len(self._buffer) < start + size:
                return
            opcode = self._buffer[0] & 15
            payload = self._buffer[start : start + size]
            self._buffer = self._buffer[start + size :]
            self._take(opcode, payload)

    def _take(self, opcode: int, payload: bytes) -> None:
        assert self._transport is not None
        if opcode == PING:
            self._transport.write(mask_frame(PONG, payload))
        elif opcode == CLOSE:
            self.close()
        elif opcode == TEXT and b'"node_register_ack"' in payload:
            self.is_registered = True
        elif opcode == TEXT and b'"ping"' in payload:
            self.send({**json.loads(payload), "type": "pong"})
        elif opcode == TEXT and b'"error"' in payload:
            self._swarm.refused.append(payload.decode())

    def close(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.close()


class NodeSwarm:
    """So many nodes at one port."""

    def __init__(self, port: int, count: int, first: int = 0) -> None:
        self.port = port
        self._numbers = range(first, first + count)
        self._open: dict[int, SwarmNode] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.refused: list[str] = []

    def start(self) -> None:
        """Connect all at once."""
        for number in self._numbers:
            self._spawn(number)

    async def stop(self) -> None:
        """Let go of all."""
        self._is_over = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in list(self._open.values()):
            node.close()
        await asyncio.sleep(0)

    @property
    def count(self) -> int:
        """How many are registered."""
        return sum(node.is_registered for node in self._open.values())

    async def all_registered(self, within_s: float) -> float:
        """Wait until all are; answers how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(within_s):
            while self.count < len(self._numbers):
                await asyncio.sleep(0.05)
        return loop.time() - began

    def lost(self, number: int, node: SwarmNode) -> None:
        """One less: it comes again."""
        if self._open.get(number) is node:
            del self._open[number]
        if not self._is_over:
            self._spawn(number)

    def _spawn(self, number: int) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            node = SwarmNode(self, number)
            try:
                await loop.create_connection(partial(_same, node), "127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            self._open[number] = node
            return


def _same(node: SwarmNode) -> SwarmNode:
    return node
