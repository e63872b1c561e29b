"""The session client: asks for node jobs over one socket and awaits their results.

A lost connection is made again under the same session id. The server then sends the results that
came meanwhile, and every request without a result is sent again under its request id, which makes
the same job, or tells how it ended.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from ksana.base.ids import new_uuid
from ksana.client.errors import ApiError, BusyError, ClientError, TransportError
from ksana.client.node_session_job import SessionJob
from ksana.client.node_socket import (
    RECONNECT,
    REPLACED,
    STEADY_SEC,
    FrameSocket,
    SocketAddress,
    SocketClosed,
    first_answer,
    is_for_good,
    pause_after,
    refusal_of,
)
from ksana.client.transport import CallBackoff
from ksana.domain.nodes import frames

log = logging.getLogger("ksana.client")


class NodeSession:
    """Use it as `async with NodeSession(url) as session`."""

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        *,
        session_id: str | None = None,
        connect_sec: float = 10.0,
        give_up_sec: float = 60.0,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        backoff: CallBackoff = RECONNECT,
    ) -> None:
        """With several addresses, of instances that share a Redis, a lost connection is made again
        to another of them. With the `session_id` of an earlier session, results that came since are
        taken up by requests made again under their request ids. After `give_up_sec` without a
        connection, what is awaited ends with a TransportError: the server keeps results for a
        minute."""
        self._address = SocketAddress(
            base_url,
            "/ws/session",
            api_key=api_key,
            connect_sec=connect_sec,
            tls=tls,
            headers=headers,
        )
        self.session_id = session_id
        self.connections = 0
        """How often it was connected."""
        self._connect_sec = connect_sec
        self._give_up_sec = give_up_sec
        self._backoff = backoff
        self._socket: FrameSocket | None = None
        self._pending: dict[str, SessionJob] = {}
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ended: ClientError | None = None

    async def __aenter__(self) -> Self:
        """Connect. Raise the ApiError of a server that refuses, or TransportError after
        `connect_sec`."""
        self._task = asyncio.create_task(self._stay_connected())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait(
                (ready, self._task),
                timeout=self._connect_sec,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ready.cancel()
        if not self._ready.is_set():
            told = f"not connected to {self._address.url} within {self._connect_sec:g} s"
            ended = self._ended or TransportError(told, is_outcome_unknown=False)
            await self.close()
            raise ended
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session. Jobs that are under way go on; nobody hears of their results."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._ended is None:
            self._ended = ClientError("the session is closed")
        self._fail_pending(self._ended)

    def request(
        self,
        model: str,
        payload: Any = None,
        *,
        request_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        priority: int = 5,
        wait_sec: float = 0.0,
        timeout_sec: float | None = None,
    ) -> SessionJob:
        """Ask for a job: await what this returns for the result, iterate over it for the partials.
        It is sent at once. The same `request_id` makes the same job; without one it gets a fresh
        one. Raise ValueError for what the server would refuse, and the error that ended the
        session, if one did."""
        if self._ended is not None:
            raise self._ended
        if self._task is None:
            raise RuntimeError("the session is not open: use `async with NodeSession(…)`")
        ask = frames.AskJob(
            model=model,
            request_id=request_id or new_uuid(),
            labels=dict(labels or {}),
            priority=priority,
            payload=msgspec.Raw(msgspec.json.encode({} if payload is None else payload)),
            wait_sec=wait_sec,
            timeout_sec=timeout_sec,
        )
        data = frames.encode(ask)
        if len(data) > frames.MAX_FRAME:
            raise ValueError(f"the request has {len(data)} bytes, more than {frames.MAX_FRAME}")
        try:
            msgspec.json.decode(data, type=frames.AskJob)
        except msgspec.ValidationError as error:
            raise ValueError(f"the server would refuse this request: {error}") from None
        job = SessionJob(ask, self._send_cancel)
        if self._pending.setdefault(job.request_id, job) is not job:
            raise ValueError(f"request {job.request_id!r} is under way in this session")
        if self._socket is not None:
            self._socket.send(ask)
        return job

    def _send_cancel(self, job_id: str) -> None:
        if self._socket is not None:
            self._socket.send(frames.SessionJobCancel(job_id=job_id))

    # --- the connection ---

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        lost_at = loop.time()
        try:
            while True:
                started_at, before = loop.time(), self.connections
                try:
                    await self._serve_once()
                except ClientError as error:
                    if is_for_good(error) or _is_replaced(error):
                        raise
                    if self.connections > before:
                        lost_at = loop.time()
                    steady = loop.time() - started_at >= STEADY_SEC
                    failures = 1 if steady else failures + 1
                    pause = pause_after(error, failures, self._backoff)
                    log.warning("%s; connecting again in %.1f s", error, pause)
                    left = self._give_up_sec - (loop.time() - lost_at)
                    if left <= pause:
                        await asyncio.sleep(max(0.0, left))
                        pause -= max(0.0, left)
                        told = f"no connection for {self._give_up_sec:g} s: {error}"
                        self._fail_pending(TransportError(told, is_outcome_unknown=True))
                    await asyncio.sleep(pause)
        except ClientError as error:
            self._ended = error
            self._fail_pending(error)

    async def _serve_once(self) -> None:
        socket = await self._address.open(frames.to_session)
        try:
            socket.send(frames.SessionInit(session_id=self.session_id))
            answer = await first_answer(socket, self._connect_sec)
            if isinstance(answer, frames.ErrorFrame):
                raise refusal_of(answer)
            if not isinstance(answer, frames.SessionInitAck):
                raise ClientError(f"the server answered with {type(answer).__name__}")
            self.session_id = answer.session_id
            self.connections += 1
            for job in self._pending.values():
                socket.send(job.ask)
            self._socket = socket
            self._ready.set()
            while True:
                self._take(await socket.read())
        finally:
            self._socket = None
            self._address.pass_on()
            with contextlib.suppress(Exception):
                await socket.close()

    # --- frames ---

    def _take(self, frame: Any) -> None:
        if isinstance(frame, frames.ErrorFrame):
            self._refuse(frame)
            return
        job = self._pending.get(getattr(frame, "request_id", ""))
        if job is None:
            return  # of an earlier life of this session, or told twice
        if isinstance(frame, frames.SessionPartial):
            job.on_partial(frame)
        elif isinstance(frame, frames.SessionResult):
            del self._pending[job.request_id]
            job.on_result(frame)
        elif isinstance(frame, frames.JobCreated):
            job.on_created(frame)
        elif isinstance(frame, frames.JobUpdate):
            job.on_update(frame)

    def _refuse(self, frame: frames.ErrorFrame) -> None:
        job = self._pending.get(frame.request_id)
        error = refusal_of(frame)
        if job is None:
            # Such as a cancel that came after the end: the result tells how it ended.
            log.info("the server says %s: %s", frame.code, frame.message)
            return
        if job.job_id is not None and _is_outage(error):
            return  # the job was made before, and goes on: its result will be told
        del self._pending[job.request_id]
        job.fail(error)

    def _fail_pending(self, error: ClientError) -> None:
        pending, self._pending = self._pending, {}
        for job in pending.values():
            job.fail(error)


def _is_replaced(error: ClientError) -> bool:
    """Another socket took the session over: to take it back would be a fight."""
    return isinstance(error, SocketClosed) and error.code == REPLACED


def _is_outage(error: ApiError) -> bool:
    return isinstance(error, BusyError) and error.code != "NO_AVAILABLE_NODE"
