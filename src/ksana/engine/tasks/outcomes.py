"""Recording what attempts came to: one transaction for all that ended meanwhile, each write fenced
by its run's token."""

import base64

import msgspec

from ksana.base.instant import SECOND, Instant, Micros, format_instant
from ksana.domain.tasks import classify, outcome
from ksana.domain.tasks.outcome import Outcome
from ksana.domain.tasks.records import Task
from ksana.engine.tasks.claimed_run import AttemptOver, ClaimedRun
from ksana.engine.tasks.promotion import promote_waiting
from ksana.engine.tasks.requests import shown_body
from ksana.ports.caller import Reply, Timing
from ksana.ports.tasks.tables import AttemptEnd, TasksTx

_encode = msgspec.json.Encoder().encode
_FINAL = frozenset({"SUCCESS", "FAILED", "TIMEOUT"})
_LAST = {"SUCCESS": "success", "FAILED": "failed", "TIMEOUT": "timeout"}
MAX_ATTEMPTS_KEPT = 100


class Recorded(msgspec.Struct):
    """What a batch of outcomes came to."""

    ready_hosts: set[str]
    wakes: bool
    statuses: list[tuple[AttemptOver, str]]
    refused: int
    begun_to: int = 0
    """The mark that was written with them; 0 if none was."""


def record_outcomes(
    tx: TasksTx, ended: list[AttemptOver], sole: bool, instance_id: str = "", begun_to: int = 0
) -> Recorded:
    """Write every outcome that is still ours to write; the rest are counted and let go. With
    `begun_to` the instance's mark is moved in the same transaction."""
    recorded = Recorded(set(), False, [], 0, begun_to)
    if not sole:
        ended = sorted(ended, key=lambda one: one.held.task.id)
    judged = [_judge(over, tx.now) for over in ended]
    if not sole:
        for over, (decided, _) in zip(ended, judged, strict=True):
            if decided.status in _FINAL and _has_line(over.held):
                tx.tasks.find(
                    over.held.task.id, lock=True
                )  # its row is the lock for its concurrency
    ends = [
        (over.held.run_id, over.held.token, _end_of(over, decided, error))
        for over, (decided, error) in zip(ended, judged, strict=True)
    ]
    last: dict[int, tuple[int, str, str]] = {}
    lines: dict[int, Task] = {}
    told: list[tuple[str, str, str, str]] = []
    sums: dict[str, list[Micros]] = {}
    for over, (decided, error), ours in zip(ended, judged, tx.runs.finish_held(ends), strict=True):
        if not ours:
            _refuse(tx, over, recorded)
            continue
        held, status = over.held, decided.status
        told.append(("RUN", str(held.run_id), f"RUN_{status}", _facts(over, decided, error)))
        sums.setdefault(status, []).append(over.ended_at - over.started_at)
        recorded.statuses.append((over, status))
        if status not in _FINAL:
            recorded.wakes = True
            continue
        last[held.task.id] = held.task.id, _LAST[status], error or ""
        if _has_line(held):
            lines[held.task.id] = held.task
    tx.events.append_texts(told)
    for ended_as, lengths in sums.items():
        tx.rollups.add(f"runs_{ended_as.lower()}", count=len(lengths), total=sum(lengths) / SECOND)
    tx.tasks.note_last_of(list(last.values()), tx.now)
    for task in lines.values():
        recorded.ready_hosts |= promote_waiting(tx, task)
    if begun_to:
        tx.instances.note_begun(instance_id, begun_to)
    return recorded


def _has_line(held: ClaimedRun) -> bool:
    return held.is_counted and held.task.definition.concurrency_policy == "QUEUE"


def _judge(over: AttemptOver, now: Instant) -> tuple[Outcome, str | None]:
    held, reply = over.held, over.reply
    definition = held.task.definition
    verdict = classify.classify(reply.kind, reply.status, reply.retry_after, now, reply.error)
    decided = outcome.decide_outcome(
        verdict,
        definition.retry,
        held.attempt,
        held.uid,
        now,
        is_async=held.exec_type == "ASYNC",
        callback_timeout_us=definition.callback_timeout_us,
    )
    if (
        definition.options.delivery == "at_most_once"
        and decided.status == "RETRYING"
        and reply.kind != "answered"
    ):
        decided = Outcome("FAILED", "OUTCOME_UNKNOWN_AT_MOST_ONCE")
    return decided, verdict.error


def _end_of(over: AttemptOver, decided: Outcome, error: str | None) -> AttemptEnd:
    held, reply, request = over.held, over.reply, over.request
    is_final = decided.status in _FINAL
    body, encoding = _text(reply)
    # In the order of the fields: names would cost as much again as the rest, and there is one for
    # every call.
    return AttemptEnd(
        decided.status,
        over.started_at,
        over.ended_at if is_final else None,
        None if is_final else held.task.id,
        decided.next_retry_time or decided.callback_deadline,
        over.shown_headers,
        None if request is None else shown_body(request, held),
        reply.status,
        body,
        int(reply.truncated),
        encoding,
        error,
        decided.reason,
        decided.next_retry_time,
        decided.callback_deadline,
        append_attempt(held.attempts, attempt_record(over, decided.status, error)),
    )


def _text(reply: Reply) -> tuple[str | None, str | None]:
    if not reply.body:
        return ("" if reply.kind == "answered" else None), None
    try:
        text = reply.body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(reply.body).decode(), "base64"
    if "\x00" in text:  # PostgreSQL cannot keep it as text
        return base64.b64encode(reply.body).decode(), "base64"
    return text, None


class _Attempt(msgspec.Struct, frozen=True, gc=False):
    """One entry of `attempts[]`."""

    attempt: int
    started_at: str
    ended_at: str
    status: str
    response_code: int | None
    error: str | None
    instance: str
    timing: Timing


def attempt_record(over: AttemptOver, status: str, error: str | None) -> bytes:
    """One entry of `attempts[]`, as JSON."""
    held, reply = over.held, over.reply
    return _encode(
        _Attempt(
            held.attempt,
            format_instant(over.started_at),
            format_instant(over.ended_at),
            status,
            reply.status,
            error,
            held.held_by,
            reply.timing,
        )
    )


def append_attempt(attempts: str, record: bytes) -> str:
    """Add a record to the JSON array, keeping the newest."""
    if attempts == "[]":
        return f"[{record.decode()}]"
    kept: list[msgspec.Raw] = msgspec.json.decode(attempts, type=list[msgspec.Raw])
    return _encode([*kept[-MAX_ATTEMPTS_KEPT + 1 :], msgspec.Raw(record)]).decode()


def _facts(over: AttemptOver, decided: Outcome, error: str | None) -> str:
    """The facts of the event that tells an attempt's end, as JSON. The reason is a word of ours: it
    needs no escaping."""
    reply = over.reply
    text = (
        f'{{"task_id":{over.held.task.id},"attempt":{over.held.attempt},"reason":"{decided.reason}"'
    )
    if reply.status is not None:
        text += f',"response_code":{reply.status}'
    if error is not None:
        text += f',"error":{_encode(error).decode()}'
    if decided.next_retry_time is not None:
        text += f',"next_retry_time":"{format_instant(decided.next_retry_time)}"'
    if decided.status in ("FAILED", "TIMEOUT"):
        text += ',"alert":true'
    return text + "}"


def _refuse(tx: TasksTx, over: AttemptOver, recorded: Recorded) -> None:
    """The run is no longer ours: cancelled, ended by its callback, or taken over. The result is
    dropped, not silently."""
    recorded.refused += 1
    data = {
        "task_id": over.held.task.id,
        "attempt": over.held.attempt,
        "reason": "TOKEN_VOID",
        "kind": over.reply.kind,
        "response_code": over.reply.status,
    }
    tx.events.append("RUN", over.held.run_id, "RUN_RESULT_REFUSED", data)
