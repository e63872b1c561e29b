"""Signals over PostgreSQL's LISTEN and NOTIFY: hints between instances that share the database.

Two threads with a connection each, one that listens and one that tells; neither is ever waited for.
Whether signals arrive is not taken on trust: the teller sends one to itself every few seconds, and
they count as live while that is heard. So a connection that was lost in silence, or a pooler that
lets LISTEN pass and keeps what comes, is noticed, and the polls under the signals look as often as
without them.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from ksana.base import log
from ksana.store.sql.core.dialects.base import load_driver
from ksana.store.sql.core.dialects.postgres import plain_url

CHANNEL: Final = "ksana_signals"
LONGEST: Final = 7_900
"""Bytes of a signal: the server takes less than 8,000."""
MOST_WAITING: Final = 64
"""Signals that wait to be told. More are dropped: they are hints."""
ECHO_EVERY_S: Final = 3.0
LIVE_FOR_S: Final = 10.0
"""How long after the last echo signals count as live."""
AGAIN_AFTER_S: Final = 1.0
FLUSH_WITHIN_S: Final = 3.0
CLOSE_WITHIN_S: Final = 1.0
_LOOK_S: Final = 0.25
_ECHO: Final = "echo"

_Work = Callable[[Any, threading.Event], None]


class PostgresSignals:
    """See `ports.signals.Signals`."""

    def __init__(self, url: str, instance_id: str) -> None:
        self._url = plain_url(url)
        self._instance_id = instance_id
        self._hearers: dict[str, list[Callable[[str], None]]] = {}
        self._waiting: SimpleQueue[str] = SimpleQueue()
        self._is_told = threading.Event()
        self._is_told.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard_s = -LIVE_FOR_S
        self.dropped = 0

    @property
    def is_live(self) -> bool:
        return time.monotonic() - self._heard_s < LIVE_FOR_S

    def subscribe(self, name: str, hear: Callable[[str], None]) -> Callable[[], None]:
        hearers = self._hearers.setdefault(name, [])
        hearers.append(hear)

        def end() -> None:
            if hear in hearers:
                hearers.remove(hear)

        return end

    def publish(self, name: str, detail: str = "") -> None:
        text = f"{self._instance_id}\n{name}\n{detail}"
        if self._waiting.qsize() >= MOST_WAITING or len(text.encode()) > LONGEST:
            self.dropped += 1
        else:
            self._is_told.clear()
            self._waiting.put(text)

    async def flush(self) -> None:
        await asyncio.to_thread(self._is_told.wait, FLUSH_WITHIN_S)

    async def run(self) -> None:
        """Listen and tell until this is cancelled."""
        self._loop = asyncio.get_running_loop()
        is_over = threading.Event()
        threads = [
            threading.Thread(
                target=self._go_on, args=(work, is_over), name="store-signals", daemon=True
            )
            for work in (self._listen, self._tell)
        ]
        for thread in threads:
            thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            is_over.set()
            for thread in threads:  # one that waits for a silent database is left behind
                await asyncio.to_thread(thread.join, CLOSE_WITHIN_S)
            self._heard_s = -LIVE_FOR_S

    # --- on the threads ---

    def _go_on(
        self, work: Callable[[Any, threading.Event], None], is_over: threading.Event
    ) -> None:
        """Do the work on a connection; when it is lost, on a new one."""
        while not is_over.is_set():
            try:
                with self._connect() as connection:
                    work(connection, is_over)
            except Exception as error:  # a hint that cannot be told is no failure of anybody
                log.debug("signals of the database are away", err=str(error))
                is_over.wait(AGAIN_AFTER_S)

    def _connect(self) -> Any:
        return load_driver("psycopg", "postgres").connect(
            self._url,
            autocommit=True,
            connect_timeout=5,
            keepalives_idle=10,
            keepalives_interval=3,
            keepalives_count=3,
            tcp_user_timeout=20_000,
            application_name="ksana signals",
        )

    def _listen(self, connection: Any, is_over: threading.Event) -> None:
        connection.execute(f"LISTEN {CHANNEL}")
        while not is_over.is_set():
            for told in connection.notifies(timeout=_LOOK_S):
                assert self._loop is not None
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._hear, told.payload)

    def _tell(self, connection: Any, is_over: threading.Event) -> None:
        echo_s = 0.0
        while not is_over.is_set():
            if time.monotonic() >= echo_s:
                echo_s = time.monotonic() + ECHO_EVERY_S
                self._notify(connection, f"{self._instance_id}\n{_ECHO}\n")
            with suppress(Empty):
                self._notify(connection, self._waiting.get(timeout=_LOOK_S))
            if self._waiting.empty():
                self._is_told.set()

    def _notify(self, connection: Any, text: str) -> None:
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, text))

    # --- on the event loop ---

    def _hear(self, text: str) -> None:
        sender, _, rest = text.partition("\n")
        name, _, detail = rest.partition("\n")
        if sender != self._instance_id:
            for hear in list(self._hearers.get(name, ())):
                hear(detail)
        elif name == _ECHO:
            self._heard_s = time.monotonic()
