"""Load over keep-alive connections for a while, so that afterwards it is known how many requests
were answered in all."""

import asyncio
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import uvloop

from bench import http_layer
from bench.figure import BenchError
from bench.ground import cores
from bench.ground.making import Sender

WARM_SEC = 0.3
WITHIN_SEC = 30


class Loaded(NamedTuple):
    """What was answered while it was measured, by wall time and by the server's CPU time; all that
    was answered."""

    per_sec: float
    per_cpu_sec: float
    answered: int
    client_share: float
    """How busy the client's core was. Near 1 the client is what was measured."""


class Echo(NamedTuple):
    """A running bare ASGI echo."""

    port: int
    pid: int


@contextmanager
def echo() -> Iterator[Echo]:
    """The floor of every accepted request: stock uvicorn that sends the body back, on the core that
    our server has."""
    with cores.on(cores.FIRST):
        process, port = http_layer.start("floor")
    try:
        yield Echo(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def load(
    port: int, request: bytes, seconds: float, pid: int, connections: int = http_layer.CONNECTIONS
) -> Loaded:
    """Ask again as soon as answered, on each connection. Anything but a 20x ends the benchmark."""
    loaded: Loaded = uvloop.run(_load(port, request, seconds, pid, connections))
    return loaded


async def _load(port: int, request: bytes, seconds: float, pid: int, connections: int) -> Loaded:
    loop, done, asked, is_open = asyncio.get_running_loop(), [0], 0, True

    def requests() -> Iterator[bytes]:
        nonlocal asked
        while is_open:
            asked += 1
            yield request

    source = requests()
    senders = [
        (await loop.create_connection(lambda: Sender(source, done), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(WARM_SEC)
    count, cpu, own, at = done[0], http_layer.cpu_seconds(pid), own_cpu(), time.perf_counter()
    await asyncio.sleep(seconds)
    count, cpu, own, wall = (
        done[0] - count,
        http_layer.cpu_seconds(pid) - cpu,
        own_cpu() - own,
        time.perf_counter() - at,
    )
    is_open = False
    give_up_at = time.perf_counter() + WITHIN_SEC
    while done[0] < asked:
        if time.perf_counter() > give_up_at:
            raise BenchError(f"{asked - done[0]} of {asked} requests were not answered")
        await asyncio.sleep(0.005)
    for sender in senders:
        sender.close()
    return Loaded(count / wall, count / max(cpu, 0.01), done[0], own / wall)


def own_cpu() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
