"""What the HTTP layer costs: a small validated POST through it, against a raw ASGI echo on the same
uvicorn.

Starts both servers as processes of their own, loads each in turn with keep-alive connections from
this process, several rounds, and prints JSON lines: requests/s by wall time and by the server's CPU
seconds, and the ratio to the floor.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

CONNECTIONS = 32
GOAL = 0.6
RATE = 10**9
"""Of the key, in requests a second: counted as usual, and never refused."""
BODY = (
    b'{"job_type":"render","priority":5,'
    b'"payload":{"frame":17,"scene":"harbour"},"name":"a small job"}'
)
REQUEST = (
    b"POST /api/v1/echo HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\naccept: */*\r\nuser-agent: bench\r\n\r\n" % len(BODY)
) + BODY


def serve_echo(port: int) -> None:
    """The floor: read the body, send it back, nothing else; stock uvicorn."""
    import uvicorn

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        echo,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    uvicorn.Server(config).run()


def serve_layer(port: int, with_key: bool) -> None:
    """The layer as `serve` runs it, with one route that decodes, checks and encodes."""
    from typing import Annotated

    import msgspec
    import uvloop
    from prometheus_client import CollectorRegistry

    from ksana.api.core.app import create_app
    from ksana.api.core.routing import Answer, Call, Route
    from ksana.api.core.server import Server, make_config
    from ksana.api.core.services import ApiSettings
    from ksana.base.clock import SystemClock
    from ksana.ports.store import ApiKey
    from ksana.service.core.events import EventLog
    from ksana.service.core.keys import KeyRing, hash_secret

    class Submit(msgspec.Struct, forbid_unknown_fields=True):
        job_type: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
        priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 5
        payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
        name: Annotated[str, msgspec.Meta(max_length=128)] = ""

    class Stored(msgspec.Struct):
        job_type: str
        priority: int
        payload: msgspec.Raw
        name: str

    async def echo(call: Call, body: Submit) -> Answer:
        return Answer(201, Stored(body.job_type, body.priority, body.payload, body.name))

    keys = (
        [ApiKey("ab", "bench", hash_secret("s" * 64), ("queue:write",), 0, None, None)]
        if with_key
        else []
    )

    class OnlyKeys:
        """A store that holds nothing but the keys; the route writes nothing."""

        url = "memory:"
        sole = True

        async def read(self, fn: Any, *args: Any) -> Any:
            return keys

        async def transact(self, fn: Any, *args: Any) -> Any:
            return None

    clock, store = SystemClock(), OnlyKeys()
    services: Any = SimpleNamespace(
        store=store,
        clock=clock,
        settings=ApiSettings(rate=RATE) if with_key else ApiSettings(),
        readiness=list,
        metrics=CollectorRegistry(),
        keys=KeyRing(store, clock),
        events=EventLog(store, clock),  # type: ignore[arg-type]
    )
    route = Route(
        "POST",
        "/api/v1/echo",
        echo,
        scope="queue:write",
        summary="Echo",
        body=Submit,
        answers={201: Stored},
    )
    app = create_app(services, [route])

    async def run() -> None:
        await Server(make_config(app, "127.0.0.1", port)).serve()

    uvloop.run(run())


class Loader(asyncio.Protocol):
    """One keep-alive connection that asks again as soon as it is answered."""

    def __init__(self, request: bytes, done: list[int]) -> None:
        self._request = request
        self._done = done
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        head = buffer.find(b"\r\n\r\n")
        if head >= 0:
            at = buffer.find(b"content-length: ") + 16
            if len(buffer) >= head + 4 + int(buffer[at : buffer.find(b"\r", at)]):
                if not buffer.startswith(b"HTTP/1.1 20"):
                    raise SystemExit(buffer.decode())
                self._done[0] += 1
                self._buffer = b""
                self._transport.write(self._request)
                return
        self._buffer = buffer

    def close(self) -> None:
        self._transport.close()


async def load(port: int, request: bytes, seconds: float, pid: int) -> tuple[float, float]:
    """Load for a while; answer (requests per second, requests per CPU-second of the server)."""
    loop = asyncio.get_running_loop()
    done = [0]
    loaders = []
    for _ in range(CONNECTIONS):
        _, loader = await loop.create_connection(lambda: Loader(request, done), "127.0.0.1", port)
        loaders.append(loader)
    await asyncio.sleep(0.3)
    before, cpu, at = done[0], cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    count, cpu, spent = done[0] - before, cpu_seconds(pid) - cpu, time.perf_counter() - at
    for loader in loaders:
        loader.close()
    return count / spent, count / max(cpu, 0.01)


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(kind: str) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, "--serve", kind, "--port", str(port)])
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, port
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"{kind} did not start")


def measure(seconds: float, rounds: int) -> None:
    import uvloop

    with_key = REQUEST.replace(
        b"accept:", b"authorization: Bearer ksana_ab_" + b"s" * 64 + b"\r\naccept:"
    )
    kinds = {"floor": REQUEST, "layer": REQUEST, "layer+key": with_key}
    servers = {kind: start(kind) for kind in kinds}
    try:
        best: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, request in kinds.items():
                process, port = servers[kind]
                best[kind].append(uvloop.run(load(port, request, seconds, process.pid)))
    finally:
        for process, _ in servers.values():
            process.send_signal(signal.SIGTERM)
            process.wait(10)
    median = {
        kind: tuple(sorted(column)[len(column) // 2] for column in zip(*runs, strict=True))
        for kind, runs in best.items()
    }
    for kind in ("layer", "layer+key"):
        for at, unit in ((0, " requests/s"), (1, " requests/CPU-s")):
            ours, floor = median[kind][at], median["floor"][at]
            print(
                json.dumps(
                    {
                        "bench": "http_layer",
                        "what": f"{kind} ÷ ASGI echo",
                        "unit": unit,
                        "ours": round(ours),
                        "floor": round(floor),
                        "ratio": round(ours / floor, 3),
                        "goal": GOAL,
                    }
                )
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=("floor", "layer", "layer+key"))
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    if given.serve == "floor":
        serve_echo(given.port)
    elif given.serve:
        serve_layer(given.port, with_key=given.serve.endswith("key"))
    else:
        measure(given.seconds, given.rounds)


if __name__ == "__main__":
    main()
