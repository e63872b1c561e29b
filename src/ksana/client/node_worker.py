"""The node worker: stays connected, is given jobs, runs handlers, sends their results.

    server ──job_assign, job_cancel──▶ Node ──▶ NodeAttempts ──▶ handlers
       ▲                                             │
       └──job_ack, job_started, job_partial, job_result, node_heartbeat──┘

What it promises: no more handlers at a time than slots; the result of an attempt goes over the
socket over which the attempt came, or is dropped, because the server has given the job to another
node by then; a lost connection is made again with growing pauses.
"""

import asyncio
import contextlib
import logging
import platform
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from ksana.base.clock import SystemClock
from ksana.client.contact import ServerContact
from ksana.client.errors import ClientError
from ksana.client.node_attempts import NodeAttempts, NodeHandler, ServedModel
from ksana.client.node_socket import (
    RECONNECT,
    STEADY_SEC,
    FrameSocket,
    SocketAddress,
    first_answer,
    is_for_good,
    pause_after,
    refusal_of,
    wait_at_most,
)
from ksana.client.serving import serve_until_signal
from ksana.client.stats import NodeStats
from ksana.client.transport import CallBackoff
from ksana.domain.nodes import frames

_FLUSH_SEC: Final = 5.0

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("ksana.client")


class Node:
    """Serves models. Register handlers with `model`, then `await run()`, or `serve()` from a
    script."""

    def __init__(
        self,
        base_url: str | Sequence[str],
        node_id: str | None = None,
        *,
        models: Iterable[str] | None = None,
        slots: int = 1,
        labels: Mapping[str, str] | None = None,
        version: str = "",
        load: Callable[[], float] | None = None,
        api_key: str | None = None,
        grace_sec: float = 30.0,
        connect_sec: float = 10.0,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        backoff: CallBackoff = RECONNECT,
    ) -> None:
        """With several addresses, of instances that share a Redis, the node connects to one of them
        and goes to another when it is lost. Without `node_id` the server gives one, which is kept.
        `models` are those to announce at first; without it all that have a handler. `slots` is how
        many jobs run at a time. `load` is asked with each heartbeat; without it the share of the
        slots in use is told. `grace_sec` is what a stop leaves to running handlers."""
        if slots < 1:
            raise ValueError("slots is 1 or more")
        self._address = SocketAddress(
            base_url,
            "/ws/node",
            api_key=api_key,
            connect_sec=connect_sec,
            tls=tls,
            headers=headers,
        )
        self.node_id = node_id
        self.slots = slots
        self.labels = dict(labels or {})
        self.version = version
        self.grace_sec = grace_sec
        self.stats = NodeStats()
        self.handlers: dict[str, ServedModel] = {}
        self._announced = None if models is None else list(models)
        self._load = load
        self._backoff = backoff
        self._answer_sec = connect_sec
        self._attempts = NodeAttempts(self.handlers, slots, self.stats)
        where = base_url if isinstance(base_url, str) else self._address.shown
        self._contact = ServerContact(f"node {node_id or ''}".strip(), where, SystemClock())
        self._socket: FrameSocket | None = None
        self._connected = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stop_grace_sec = grace_sec
        self._was_run = False

    # --- handlers ---

    def model(
        self, name: str, *, payload_type: Any = None, interrupt: bool = True
    ) -> Callable[[F], F]:
        """Register the handler of a model: `async def` runs on the event loop, `def` in a thread.

        `payload_type`: the payload is converted to it, and one that does not fit fails the job.
        `interrupt`: when the attempt is not wanted any more, an async handler gets CancelledError;
        without it only `ctx.cancelled` is set.
        """

        def register(handler: F) -> F:
            self.add_model(name, handler, payload_type=payload_type, interrupt=interrupt)
            return handler

        return register

    def add_model(
        self, name: str, handler: NodeHandler, *, payload_type: Any = None, interrupt: bool = True
    ) -> None:
        """Register a handler without the decorator."""
        if name in self.handlers:
            raise ValueError(f"{name!r} has a handler already")
        self.handlers[name] = ServedModel(name, handler, payload_type, interrupt)

    @property
    def models(self) -> list[str]:
        """The models that the server knows, or will be told, that this node has."""
        return list(self.handlers) if self._announced is None else list(self._announced)

    def announce(self, models: Iterable[str]) -> None:
        """From now on the node has these models: tell the server at once."""
        self._announced = list(models)
        self._check_models()
        if not self._stopping.is_set():
            self._beat(self._announced)

    # --- life ---

    def serve(self) -> None:
        """Run until SIGTERM or SIGINT, then drain; a second signal cuts the grace."""
        serve_until_signal(self.run, self._stop_by_signal)

    def _stop_by_signal(self) -> None:
        self.stop(0.0 if self._stopping.is_set() else None)

    def stop(self, grace_sec: float | None = None) -> None:
        """Take no more jobs, finish what runs within the grace, send the results; `run` returns."""
        self._stop_grace_sec = self.grace_sec if grace_sec is None else grace_sec
        self._stopping.set()

    @property
    def running(self) -> int:
        """Count the attempts that have not ended."""
        return self._attempts.running

    @property
    def is_connected(self) -> bool:
        """Tell whether the server knows this node now."""
        return self._connected.is_set()

    async def wait_connected(self) -> None:
        """Wait until the node is registered."""
        await self._connected.wait()

    async def run(self) -> NodeStats:
        """Work until stopped. Raise the ApiError when the server refuses this node for good: a
        wrong key, an id that another live node has."""
        self._check_models()
        if self._was_run:
            raise RuntimeError("a node runs once: make another")
        self._was_run = True
        executor = ThreadPoolExecutor(max_workers=self.slots, thread_name_prefix="ksana-node")
        self._attempts.start(executor)
        speaker, models = self._contact.speaker, ", ".join(sorted(self.models))
        log.info("%s: starting, slots %d, models %s", speaker, self.slots, models)
        try:
            await self._stay_connected()
        finally:
            self._attempts.give_up("the node stops", is_forced=True)
            if left := [task for task in self._attempts.tasks if not task.done()]:
                await asyncio.wait(left, timeout=_FLUSH_SEC / 2)
            executor.shutdown(wait=False, cancel_futures=True)
            log.info("%s: stopped", self._contact.speaker)
        return self.stats

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping.is_set():
            started_at = loop.time()
            try:
                await self._serve_once()
            except ClientError as error:
                if is_for_good(error):
                    raise
                steady = loop.time() - started_at >= STEADY_SEC
                failures = 1 if steady else failures + 1
                pause = pause_after(error, failures, self._backoff)
                self._contact.on_failure(error, pause)
                await wait_at_most(self._stopping, pause)

    async def _serve_once(self) -> None:
        """One socket, from its opening to its end. Returns when the node has drained."""
        socket = await self._address.open(frames.to_node)
        try:
            ack = await self._register(socket)
            tasks = [
                asyncio.create_task(self._read(socket)),
                asyncio.create_task(self._drain(socket)),
                asyncio.create_task(self._beat_every(ack.heartbeat_sec)),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._socket = None
                self._connected.clear()
                ended = [task for task in tasks if task.done()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in ended:
                task.result()
        finally:
            self._attempts.give_up("the connection was lost")
            self._address.pass_on()
            await socket.close()

    async def _register(self, socket: FrameSocket) -> frames.NodeRegisterAck:
        socket.send(self._registration())
        answer = await first_answer(socket, self._answer_sec)
        if isinstance(answer, frames.ErrorFrame):
            raise refusal_of(answer)
        if not isinstance(answer, frames.NodeRegisterAck):
            raise ClientError(f"the server answered with {type(answer).__name__}")
        self.node_id = self._attempts.node_id = answer.node_id
        self._socket = socket
        self.stats.connections += 1
        self._contact.speaker = f"node {self.node_id}"
        self._contact.on_answer()
        self._connected.set()
        return answer

    async def _read(self, socket: FrameSocket) -> None:
        while True:
            frame = await socket.read()
            if isinstance(frame, frames.JobAssign):
                self._attempts.take(frame, socket)
            elif isinstance(frame, frames.NodeJobCancel):
                self._attempts.cancel(frame.job_id, frame.attempt_id, frame.reason)
            elif isinstance(frame, frames.ErrorFrame):
                log.warning("the server says %s: %s", frame.code, frame.message)

    # --- heartbeats ---

    async def _beat_every(self, interval_sec: float) -> None:
        while True:
            await asyncio.sleep(interval_sec)
            self._beat(None)

    def _beat(self, models: list[str] | None) -> None:
        """Send a heartbeat; `models` replaces what the server knows."""
        if self._socket is None:
            return
        running = self._attempts.running
        load = running / self.slots if self._load is None else self._load()
        self._socket.send(frames.NodeHeartbeat(running=running, load=load, models=models))

    # --- the end ---

    async def _drain(self, socket: FrameSocket) -> None:
        """When a stop is asked for: offer no model, finish what is there, and what was on its way,
        within the grace."""
        await self._stopping.wait()
        started_at = asyncio.get_running_loop().time()
        self._beat([])
        heard = asyncio.create_task(socket.ask_alive("drain"))
        try:
            await self._wait_within(lambda: [heard, *self._attempts.tasks], started_at)
        finally:
            heard.cancel()
        self._attempts.give_up("the node stops", is_forced=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SEC):
                await socket.flush()

    async def _wait_within(
        self, tasks: Callable[[], list[asyncio.Task[None]]], started_at: float
    ) -> None:
        """Wait for the tasks while the grace lasts. A second stop may shorten it meanwhile."""
        loop = asyncio.get_running_loop()
        while pending := [task for task in tasks() if not task.done()]:
            left = self._stop_grace_sec - (loop.time() - started_at)
            if left <= 0:
                return
            await asyncio.wait(pending, timeout=min(left, 0.2))

    # --- what is sent first ---

    def _check_models(self) -> None:
        if not self.handlers:
            raise ValueError("the node has no handler: register one with @node.model(…)")
        if strange := sorted(set(self.models) - set(self.handlers)):
            raise ValueError(f"there is no handler for {', '.join(strange)}")

    def _registration(self) -> frames.NodeRegister:
        frame = frames.NodeRegister(
            slots=self.slots,
            models=self.models,
            node_id=self.node_id,
            version=self.version,
            platform=platform.platform(terse=True)[:128],
            labels=self.labels,
        )
        try:
            return msgspec.json.decode(frames.encode(frame), type=frames.NodeRegister)
        except msgspec.ValidationError as error:
            raise ValueError(f"the server would refuse this node: {error}") from None
