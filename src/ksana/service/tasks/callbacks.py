"""Use cases of callbacks: a target says how an asynchronous run ended, or that it still works."""

import contextlib
import hmac
from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError, InvalidError, MethodError, NotFoundError
from ksana.base.ids import new_token
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.lifecycle import RUN
from ksana.domain.secrets import Secrets, hash_token, mask
from ksana.domain.tasks.changes import end_by_callback, extend_deadline
from ksana.domain.tasks.records import Run, Task
from ksana.domain.tasks.secrets import OF_EVERY_CALL, find_secrets
from ksana.engine.tasks.run_writer import write_changes
from ksana.engine.tasks.task_secrets import CLEAR, TOKEN_DIGITS, TaskSecrets
from ksana.ports.secrets import SealError
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx
from ksana.service.tasks.definitions import Hints

_DATA_LIMIT = 1024 * 1024
_encode = msgspec.json.Encoder().encode

MAX_KEPT: Final = 100
MAX_KEPT_BYTES: Final = 2 * 1024 * 1024
"""Callbacks that one run keeps, by number and by size."""
MAX_CUT: Final = 4096
"""Characters kept of the callback that ends a run beyond that."""


class CallbackBody(msgspec.Struct, frozen=True):
    """What a target sends. Members we do not know are kept with the callback and never refused."""

    status: str
    data: Any = None
    error_message: str | None = None
    progress: float | None = None
    extend_sec: float | None = None


class CallbackAnswer(msgspec.Struct, frozen=True):
    """What it is told."""

    run_id: int
    final_status: str | None
    callback_deadline: Instant | None = None


class Received(msgspec.Struct, frozen=True):
    """A callback with what came around it; secrets in the headers are masked already."""

    body: CallbackBody
    raw_body: str
    headers_json: str
    method: str


SHOWN_FINAL: Final = {
    status: "SUCCESS" if status == "CALLBACK_SUCCESS" else status for status in RUN.final
}
"""The terminal status of a run as callers see it; one that goes on is not here."""


class CallbackService:
    """Takes callbacks by token or by identity."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        hints: Hints,
        token_ttl_us: Micros,
        identity_mode: bool,
        secrets: TaskSecrets = CLEAR,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._clock = clock
        self._hints = hints
        self._token_ttl_us = token_ttl_us
        self._identity_mode = identity_mode

    async def take_by_token(self, token: str, received: Received) -> CallbackAnswer:
        """An unknown or outlived token is NOT_FOUND."""
        answer, hosts = await self._store.transact(
            _by_token, token, received, self._token_ttl_us, self._secrets
        )
        for host in hosts:
            self._hints.ready(host)
        return answer

    async def take_by_identity(
        self, task_id: int, run_id: int, received: Received
    ) -> CallbackAnswer:
        """The token-less form; it can be turned off."""
        if not self._identity_mode:
            raise NotFoundError(
                "callbacks without a token are turned off here: use the callback URL with its token"
            )
        answer, hosts = await self._store.transact(
            _by_identity, task_id, run_id, received, self._secrets
        )
        for host in hosts:
            self._hints.ready(host)
        return answer


def _by_token(
    tx: TasksTx, token: str, received: Received, ttl_us: Micros, secrets: TaskSecrets
) -> tuple[CallbackAnswer, set[str]]:
    """The store has the hash of a token; of a run that was open when tokens came to be hashed it
    has the token itself, which is shorter, so that a hash is never taken for one."""
    stored = [hash_token(token), token] if len(token) == TOKEN_DIGITS else [hash_token(token)]
    for text in stored:
        found = tx.runs.find_by_token(text)
        if found is not None and hmac.compare_digest(found.callback_hash, text):
            if found.end_time is not None and tx.now > found.end_time + ttl_us:
                break
            return _take(tx, found.run_id, found.task_id, received, secrets, token)
    raise NotFoundError("no run waits for this callback token")


def _by_identity(
    tx: TasksTx, task_id: int, run_id: int, received: Received, secrets: TaskSecrets
) -> tuple[CallbackAnswer, set[str]]:
    run = tx.runs.find(run_id)
    if run is None or run.task_id != task_id:
        raise NotFoundError(f"task {task_id} has no run {run_id}")
    return _take(tx, run_id, task_id, received, secrets, None)


def _take(
    tx: TasksTx,
    run_id: int,
    task_id: int,
    received: Received,
    task_secrets: TaskSecrets,
    token: str | None,
) -> tuple[CallbackAnswer, set[str]]:
    task = tx.tasks.find(task_id, lock=True)
    run = tx.runs.find(run_id, lock=True)
    if run is None or task is None:
        raise NotFoundError("the run is gone")
    if run.exec_type != "ASYNC":
        raise ConflictError(
            "this run is not asynchronous: it takes no callback", current={"status": run.status}
        )
    method = task.definition.callback_method
    if received.method != method:
        raise MethodError(f"this task takes its callback by {method}")
    received = _mask(received, task, run, task_secrets, token)
    body, status = received.body, received.body.status
    if status not in ("SUCCESS", "FAILED", "RUNNING"):
        raise InvalidError("status must be SUCCESS, FAILED or RUNNING", field="status")
    if run.status in RUN.final:
        if _keep(tx, run, received, "IGNORED"):
            tx.events.append(
                "RUN",
                run.id,
                "CALLBACK_IGNORED",
                {"task_id": task.id, "status": run.status, "sent": status},
            )
        return CallbackAnswer(run.id, SHOWN_FINAL.get(run.status)), set()
    _keep(tx, run, received, "RECEIVED")
    if status == "RUNNING":
        return _keep_waiting(tx, run, body), set()
    data = None if body.data is None else _encode(body.data).decode()[:_DATA_LIMIT]
    change = end_by_callback(run, task, status, data, body.error_message, tx.now, new_token())
    written = write_changes(tx, [change])
    if not written.done[0]:
        raise ConflictError(
            "the run changed meanwhile: send the callback again", current={"status": run.status}
        )
    return CallbackAnswer(run.id, SHOWN_FINAL.get(change.new)), written.ready_hosts


def _mask(
    received: Received, task: Task, run: Run, task_secrets: TaskSecrets, token: str | None
) -> Received:
    """The callback as it is kept: what it repeats of the run's secrets reads `***`. What cannot be
    opened here was not sent from here. The token is derived anew only where it did not come with
    the callback."""
    secrets: Secrets | None = None
    with contextlib.suppress(SealError):
        definition, options = task.definition, task.definition.options
        if options.sealed_by:
            definition = task_secrets.open(definition, task.job_id)
            options = definition.options
        if definition.headers or options.signing_secret:
            secrets = find_secrets(
                definition.headers.items(), options.secret_headers, options.signing_secret
            )
    with contextlib.suppress(SealError):
        if token is None and run.callback_hash is not None:
            token = task_secrets.find_token(run.uid, run.callback_hash)
    if token is not None:
        secrets = (secrets or OF_EVERY_CALL).with_token(token)
    raw = received.raw_body.encode()
    is_clean = b"\\" not in raw and not (secrets and secrets.are_in(raw))
    if secrets is None or (is_clean and not secrets.are_in(received.headers_json.encode())):
        return received
    body = received.body
    data, error = body.data, body.error_message
    masked = msgspec.structs.replace(
        body,
        data=None if data is None else msgspec.Raw(mask(_encode(data), secrets.values)),
        error_message=None if error is None else secrets.mask(error),
    )
    return Received(
        masked,
        secrets.mask(received.raw_body),
        secrets.mask(received.headers_json),
        received.method,
    )


def _keep(tx: TasksTx, run: Run, received: Received, status: str) -> bool:
    """Keep a callback as it came, within what a run may keep: whoever has its token could fill the
    disk. The one that ends the run is always kept, cut if need be. Answer whether it is."""
    count, size, is_capped = tx.runs.measure_callbacks(run.id)
    body = received.raw_body
    if count < MAX_KEPT and size + len(body) <= MAX_KEPT_BYTES:
        tx.run_changes.insert_callback(run.id, received.headers_json, body, status)
        return True
    if not is_capped:
        tx.run_changes.insert_callback(run.id, "{}", "", "CAPPED")
        data = {"task_id": run.task_id, "kept": count, "bytes": size}
        tx.events.append("RUN", run.id, "CALLBACKS_CAPPED", data)
    if status == "RECEIVED" and received.body.status != "RUNNING":
        tx.run_changes.insert_callback(run.id, "{}", body[:MAX_CUT], status)
    return False


def _keep_waiting(tx: TasksTx, run: Run, body: CallbackBody) -> CallbackAnswer:
    deadline = run.callback_deadline
    if body.extend_sec is not None and run.status == "CALLBACK_PENDING":
        if not 0 < body.extend_sec <= 86_400 * 30:
            raise InvalidError("extend_sec must lie between 0 and 2592000", field="extend_sec")
        deadline = max(deadline or 0, tx.now + round(body.extend_sec * SECOND))
        write_changes(tx, [extend_deadline(run, deadline)])
    return CallbackAnswer(run.id, None, deadline)
