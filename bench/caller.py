"""Calls per CPU-second: `CurlCaller` and the plain client, guard on, against the bare libcurl loop,
on a local nginx.

    python bench/caller.py [--seconds 3] [--concurrency 64] [--loop uvloop|asyncio] [--rounds 2]

Prints one JSON line per measurement and one per ratio. All run in this process, in turns, so that a
ratio says more than the figures.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pycurl
import uvloop

from ksana.outbound.by_scheme import HttpCaller
from ksana.outbound.curl.caller import CurlCaller
from ksana.outbound.egress import EgressPolicy
from ksana.ports.caller import Caller, Reply, Request

BODY = (
    b'{"run_id":"0123456789abcdef0123456789abcdef","payload":{"order_id":12345,"x":"'
    + b"y" * 100
    + b'"}}'
)
HEADERS = (
    ("Content-Type", "application/json"),
    ("X-Ksana-Run-Id", "0123456789abcdef0123456789abcdef"),
    ("X-Ksana-Attempt", "1"),
)
GOALS = {"CurlCaller": 0.85, "plain client": 3.0}
NGINX = """
worker_processes 1; daemon off; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 2048; }}
http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {dir}/body; proxy_temp_path {dir}/p;
  fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{ listen 127.0.0.1:{port} backlog=1024; location / {{ return 200 "ok"; }} }} }}
"""


class BareLoop:
    """The floor: libcurl on the event loop with a future per call, and nothing that a real caller needs besides."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.multi = pycurl.CurlMulti()
        self.multi.setopt(pycurl.M_MAXCONNECTS, 256)
        self.multi.setopt(pycurl.M_SOCKETFUNCTION, self.watch)
        self.multi.setopt(pycurl.M_TIMERFUNCTION, self.set_timer)
        self.timer: Any = None
        self.free: list[Any] = []
        self.waiting: dict[Any, asyncio.Future[Any]] = {}

    def set_timer(self, ms: int) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None
        if ms == 0:
            self.timer = self.loop.call_soon(self.on_timer)
        elif ms > 0:
            self.timer = self.loop.call_later(ms / 1000, self.on_timer)

    def on_timer(self) -> None:
        self.timer = None
        self.multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self.collect()

    def watch(self, what: int, fd: int, multi: Any, data: Any) -> None:
        if what & pycurl.POLL_IN and what != pycurl.POLL_REMOVE:
            self.loop.add_reader(fd, self.on_ready, fd, pycurl.CSELECT_IN)
        else:
            self.loop.remove_reader(fd)
        if what & pycurl.POLL_OUT and what != pycurl.POLL_REMOVE:
            self.loop.add_writer(fd, self.on_ready, fd, pycurl.CSELECT_OUT)
        else:
            self.loop.remove_writer(fd)

    def on_ready(self, fd: int, event: int) -> None:
        self.multi.socket_action(fd, event)
        self.collect()

    def collect(self) -> None:
        while True:
            queued, answered, failed = self.multi.info_read()
            for curl in answered:
                self.finish(curl, None)
            for curl, _, message in failed:
                self.finish(curl, message)
            if not queued:
                break

    def finish(self, curl: Any, error: str | None) -> None:
        self.multi.remove_handle(curl)
        waiter = self.waiting.pop(curl)
        if not waiter.done():
            waiter.set_result(
                (
                    curl.getinfo(pycurl.RESPONSE_CODE),
                    b"".join(curl.chunks),
                    error,
                    curl.getinfo(pycurl.TOTAL_TIME),
                    curl.getinfo(pycurl.STARTTRANSFER_TIME),
                )
            )
        self.free.append(curl)

    def call(
        self, url: str, headers: list[str], body: bytes, timeout_ms: int
    ) -> asyncio.Future[Any]:
        if self.free:
            curl = self.free.pop()
        else:
            curl = pycurl.Curl()
            curl.setopt(pycurl.NOSIGNAL, 1)
            curl.setopt(pycurl.POST, 1)
        curl.chunks = []
        curl.setopt(pycurl.WRITEFUNCTION, curl.chunks.append)
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.HTTPHEADER, headers)
        curl.setopt(pycurl.POSTFIELDS, body)
        curl.setopt(pycurl.TIMEOUT_MS, timeout_ms)
        waiter = self.waiting[curl] = self.loop.create_future()
        self.multi.add_handle(curl)
        return waiter


async def run_bare(url: str, seconds: float, concurrency: int) -> int:
    caller, count, end = BareLoop(), 0, time.perf_counter() + seconds
    lines = [*(f"{name}: {value}" for name, value in HEADERS), "Expect:"]

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end:
            status, _, error, *_ = await caller.call(url, lines, BODY, 30_000)
            assert status == 200, error
            count += 1

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return count


async def run_curl(url: str, seconds: float, concurrency: int) -> int:
    return await run_caller(
        CurlCaller(EgressPolicy(deny=("172.16.0.0/12",))), url, seconds, concurrency
    )


async def run_plain(url: str, seconds: float, concurrency: int) -> int:
    return await run_caller(
        HttpCaller(EgressPolicy(deny=("172.16.0.0/12",))), url, seconds, concurrency
    )


async def run_caller(caller: Caller, url: str, seconds: float, concurrency: int) -> int:
    end = time.perf_counter() + seconds
    count, busy, over = 0, concurrency, asyncio.Event()

    def start() -> None:
        caller.call(Request("POST", url, HEADERS, BODY, timeout_us=30_000_000), on_reply)

    def on_reply(reply: Reply) -> None:
        nonlocal count, busy
        assert reply.status == 200, reply
        count += 1
        if time.perf_counter() < end:
            start()
        else:
            busy -= 1
            if not busy:
                over.set()

    for _ in range(concurrency):
        start()
    await over.wait()
    caller.close()
    return count


def measure(name: str, run: Callable[..., Any], url: str, options: argparse.Namespace) -> float:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    factory = uvloop.new_event_loop if options.loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        count = runner.run(run(url, options.seconds, options.concurrency))
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate = float(count / cpu)
    print(
        json.dumps(
            {
                "bench": "caller",
                "what": name,
                "loop": options.loop,
                "concurrency": options.concurrency,
                "ours": round(rate),
                "unit": " calls/CPU-s",
                "cpu_us": round(1e6 / rate, 1),
                "calls_per_s": round(count / wall),
            }
        ),
        flush=True,
    )
    return rate


@contextlib.contextmanager
def serve_nginx() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "nginx.conf")
        config.write_text(NGINX.format(dir=folder, port=port))
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
        if (
            len(cores) > 1
        ):  # a core each, or the two push each other about and the figures with them
            os.sched_setaffinity(0, cores[-1:])
        server = subprocess.Popen(
            ["nginx", "-p", folder, "-c", str(config)], stderr=subprocess.DEVNULL
        )
        try:
            if len(cores) > 1:
                os.sched_setaffinity(0, cores[:1])
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}/hook"
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    floor: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in GOALS}
    with serve_nginx() as url:
        for _ in range(options.rounds):
            floor.append(measure("bare loop", run_bare, url, options))
            ours["CurlCaller"].append(measure("CurlCaller", run_curl, url, options))
            ours["plain client"].append(measure("plain client", run_plain, url, options))
    for name, goal in GOALS.items():
        mine, bare = statistics.median(ours[name]), statistics.median(floor)
        print(
            json.dumps(
                {
                    "bench": "caller",
                    "what": f"{name} ÷ bare loop",
                    "loop": options.loop,
                    "ours": round(mine),
                    "floor": round(bare),
                    "unit": " calls/CPU-s",
                    "ratio": round(mine / bare, 3),
                    "goal": goal,
                }
            )
        )


if __name__ == "__main__":
    main()
