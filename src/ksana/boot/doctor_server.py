"""Whether the one who holds our port and our store is our own server, and how it fares: then the
doctor calls neither taken. Nothing here writes."""

import asyncio
import os
import re
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.boot import instance_identity
from ksana.boot.settings.table import Settings
from ksana.boot.stores import find_file, open_store
from ksana.ports.store import Tx
from ksana.store.sql.core.sqlite_file import find_holder

_ANSWER_WITHIN_SEC: Final = 5.0
_MOST: Final = 1 << 20
_LISTENING: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]\Z", re.ASCII)


class OwnServer(msgspec.Struct, frozen=True):
    """The server of these settings, as it answers at their address."""

    pid: int
    problems: str
    """Why it is not ready; empty if it is."""


async def find_own_server(settings: Settings, clock: Clock) -> OwnServer | None:
    """The process that is on our store and listens on our port; None if no one process does
    both."""
    if not settings.server.port:
        return None
    with suppress(Exception):  # another check says what is wrong with the store
        for pid in await _list_on_store(settings, clock):
            if _listens(pid, settings.server.port):
                problems = await asyncio.to_thread(_ask_readiness, settings)
                return None if problems is None else OwnServer(pid, problems)
    return None


async def _list_on_store(settings: Settings, clock: Clock) -> list[int]:
    """The processes of this machine that are on our store."""
    file = find_file(settings.store.url)
    if file is not None:
        holder = find_holder(str(file)) or ""
        return [int(holder)] if holder.isdecimal() else []
    store = await open_store(settings.store.url, clock, migrate=False, serve=False)
    try:
        return await store.read(_list_alive_here)
    finally:
        await store.close()


def _list_alive_here(tx: Tx) -> list[int]:
    here = instance_identity.find_host()
    alive = [one for one in tx.instances.list_instances() if one.stopped_at is None]
    pids = [instance_identity.find_pid(one) for one in alive if one.host == here]
    return [pid for pid in pids if pid is not None]


def _listens(pid: int, port: int) -> bool:
    """Whether a process listens on a port. Where that cannot be seen (macOS, another user's
    process), its answer must do."""
    folder = Path(f"/proc/{pid}")
    try:
        sockets = {
            match[1]
            for fd in (folder / "fd").iterdir()
            if (match := _SOCKET.match(_read_link(fd))) is not None
        }
        tables = [(folder / "net" / name).read_text("ascii") for name in ("tcp", "tcp6")]
    except PermissionError:
        return True
    except OSError:
        return not Path("/proc/self").exists()  # where it does, this process is no more
    wanted = f"{port:04X}"
    return any(
        columns[3] == _LISTENING and columns[1].endswith(f":{wanted}") and columns[9] in sockets
        for table in tables
        for columns in (line.split() for line in table.splitlines()[1:])
    )


def _read_link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed since
        return ""


def _ask_readiness(settings: Settings) -> str | None:
    """What is wrong with the server at our address; empty if nothing is, None if it is none of
    ours."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(
        settings.server.host, settings.server.host
    )
    base = f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"
    # No proxy of the environment: this is about our own port.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base}/readyz", timeout=_ANSWER_WITHIN_SEC) as answer:
            told = _read_problems(answer.read(_MOST))
    except urllib.error.HTTPError as error:
        with error:
            told = _read_problems(error.read(_MOST))
    except TimeoutError:
        return f"it did not answer within {_ANSWER_WITHIN_SEC:g} s"
    except OSError:
        return None
    return told


def _read_problems(body: bytes) -> str | None:
    try:
        told: Any = msgspec.json.decode(body)
        if told["status"] == "ready":
            return ""
        return "; ".join(str(one) for one in told["problems"]) or "it is not ready"
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
