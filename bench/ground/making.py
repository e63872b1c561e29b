"""Makes tasks over the API on keep-alive connections, as fast as they are taken."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import uvloop

from bench.http_layer import CONNECTIONS, Loader
from ksana.base.instant import Instant, format_instant


class Sender(Loader):
    """One keep-alive connection that sends the next of many requests when the last is answered."""

    def __init__(self, requests: Iterator[bytes], done: list[int]) -> None:
        self._requests = requests
        super().__init__(b"", done)

    @property
    def _request(self) -> bytes:
        return next(self._requests, b"")  # nothing is written when all are sent

    @_request.setter
    def _request(self, _: bytes) -> None:
        return None


def post(path: str, body: dict[str, Any]) -> bytes:
    """A request as it goes over the wire."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def once_job(url: str, run_at: Instant, number: int) -> bytes:
    """Make a timer that POSTs once."""
    call = {
        "method": "POST",
        "url": url,
        "headers": {"Content-Type": "application/json"},
        "body": f'{{"order":{number}}}',
    }
    return post(
        "/jobs", {"http": call, "schedule": {"kind": "once", "run_at": format_instant(run_at)}}
    )


def every_task(
    url: str, number: int, every_sec: float, start_at: Instant, end_at: Instant
) -> bytes:
    """Make a task that POSTs at an interval, from `start_at` to `end_at`."""
    schedule = {
        "kind": "every",
        "every": every_sec,
        "start_at": format_instant(start_at),
        "end_at": format_instant(end_at),
    }
    return post(
        "/api/v1/tasks",
        {"name": f"even {number}", "target_url": url, "http_method": "POST", "schedule": schedule},
    )


def send(port: int, requests: list[bytes]) -> float:
    """Send all of them over 32 connections; the seconds it took. Anything but a 20x ends the
    benchmark."""
    return float(uvloop.run(_send(port, requests)))


async def _send(port: int, requests: list[bytes]) -> float:
    loop, done, left = asyncio.get_running_loop(), [0], iter(requests)
    began = time.perf_counter()
    senders = [
        (await loop.create_connection(lambda: Sender(left, done), "127.0.0.1", port))[1]
        for _ in range(min(CONNECTIONS, len(requests)))
    ]
    while done[0] < len(requests):
        if all(sender._transport.is_closing() for sender in senders):
            raise SystemExit(f"the server hung up after {done[0]} requests")
        await asyncio.sleep(0.005)
    spent = time.perf_counter() - began
    for sender in senders:
        sender.close()
    return spent
