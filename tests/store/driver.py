"""A small program that writes through the store and prints each acknowledgement: `python -m
tests.store.driver PATH COUNT`.

It prints `ready`, then `ack NAME` after each write that was answered, `down MESSAGE` for one that
was refused. Under strace each `ack` is a write(2) to stdout, so that the order of syncs and answers
can be read from the trace.
"""

import asyncio
import os
import sys
from typing import Any

from ksana.base.clock import SystemClock
from ksana.base.errors import StoreDownError
from ksana.store.sql import open_store


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def enter(tx: Any, name: str) -> str:
    tx.keys.insert(name, name, "0" * 64, ())
    tx.events.append("KEY", name, "KEY_CREATED")
    tx.rollups.add("entered")
    return name


async def write(path: str, count: int, callers: int, prefix: str) -> None:
    store = await open_store(f"sqlite:///{path}", SystemClock(), serve=True)
    say("ready")

    async def call(caller: int) -> None:
        for n in range(count):
            try:
                say(f"ack {await store.transact(enter, f'{prefix}{caller}-{n}')}")
            except StoreDownError as error:
                say(f"down {error.message}")

    await asyncio.gather(*(call(n) for n in range(callers)))
    health = store.health()
    say(f"health {health.ok} {health.reason}")
    await store.close()


async def write_around_a_copy(path: str, before: int, after: int, prefix: str) -> None:
    """Write, let the log be copied into the file while nothing else is written, and write on.
    SQLite syncs the file only if nothing was added to the log meanwhile."""
    store = await open_store(f"sqlite:///{path}", SystemClock(), serve=True)
    say("ready")
    for n in range(before):
        say(f"ack {await store.transact(enter, f'{prefix}{n}')}")
    async with asyncio.timeout(60):
        while store.health().ok:
            await asyncio.sleep(0.01)
    for n in range(before, before + after):
        try:
            say(f"ack {await store.transact(enter, f'{prefix}{n}')}")
        except StoreDownError as error:
            say(f"down {error.message}")
    health = store.health()
    say(f"health {health.ok} {health.reason}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
