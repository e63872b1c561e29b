"""Recording what attempts came to: one transaction for all that ended meanwhile, each write fenced
by its run's token."""

import base64

import msgspec

from ksana.base.ids import new_token
from ksana.base.instant import format_instant
from ksana.domain.tasks import classify, rescue
from ksana.domain.tasks.changes import AttemptRecord, RunChange
from ksana.domain.tasks.job_runs import end_by_job
from ksana.domain.tasks.outcome import decide_attempt, end_attempt
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.requests import shown_body
from ksana.engine.tasks.run_writer import write_changes
from ksana.ports.caller import Reply, Timing
from ksana.ports.tasks.tables import TasksTx

_encode = msgspec.json.Encoder().encode


class Recorded(msgspec.Struct):
    """What a batch of outcomes came to."""

    ready_hosts: set[str]
    wakes: bool
    statuses: list[tuple[AttemptOver, str]]
    refused: int
    watermark: int = 0
    """The watermark that was written with them; 0 if none was."""


def record_outcomes(
    tx: TasksTx, ended: list[AttemptOver], sole: bool, instance_id: str = "", watermark: int = 0
) -> Recorded:
    """Write every outcome that is still ours to write; the rest are counted and let go. With
    `watermark` the instance's watermark is moved in the same transaction."""
    if not sole:  # every instance changes tasks in one order, or two would wait for each other
        ended = sorted(ended, key=lambda one: one.held.task.id)
    overs: list[AttemptOver] = []
    changes: list[RunChange] = []
    refused: list[AttemptOver] = []
    for over in ended:
        change = _change_of(tx, over)
        if change is None:
            refused.append(over)
        else:
            overs.append(over)
            changes.append(change)
    written = write_changes(tx, changes, lock=not sole)
    statuses: list[tuple[AttemptOver, str]] = []
    for over, change, is_done in zip(overs, changes, written.done, strict=True):
        if is_done:
            statuses.append((over, change.new))
        else:
            refused.append(over)
    for over in refused:
        _refuse(tx, over)
    if watermark:
        tx.instances.note_begun(instance_id, watermark)
    return Recorded(written.ready_hosts, written.wakes, statuses, len(refused), watermark)


def _change_of(tx: TasksTx, over: AttemptOver) -> RunChange | None:
    """The change an attempt's end makes; None if its run is another's already."""
    held, reply, now = over.held, over.reply, tx.now
    if over.job is not None and over.job.end is not None:
        return end_by_job(held, over.job, over.job.end, over.ended_at, now)
    if over.request is None and reply.kind == "aborted":
        # Never sent, because the lease of this instance was lost: no attempt was made.
        run = tx.runs.find(held.run_id)
        if run is None or run.status != "RUNNING" or run.token != held.token:
            return None
        return rescue.give_back(run, now, new_token())
    verdict = classify.classify(reply.kind, reply.status, reply.retry_after, now, reply.error)
    decided = decide_attempt(held, verdict, reply.kind, reply.sends, now)
    return end_attempt(
        held,
        decided,
        verdict.error,
        _record_of(over),
        attempt_entry(over, decided.status, verdict.error),
        over.started_at,
        over.ended_at,
    )


def _record_of(over: AttemptOver) -> AttemptRecord:
    reply, request = over.reply, over.request
    body, encoding = _text(reply)
    # By position, in the order of the fields: there is one for every call.
    return AttemptRecord(
        over.shown_headers,
        None if request is None else shown_body(request),
        reply.status,
        body,
        reply.truncated,
        encoding,
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


class _AttemptEntry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry of `attempts[]`. `sends` is shown where it is not 1."""

    attempt: int
    started_at: str
    ended_at: str
    status: str
    response_code: int | None
    error: str | None
    instance: str
    timing: Timing
    sends: int = 1


def attempt_entry(over: AttemptOver, status: str, error: str | None) -> bytes:
    """One entry of `attempts[]`, as JSON."""
    held, reply = over.held, over.reply
    return _encode(
        _AttemptEntry(
            held.attempt,
            format_instant(over.started_at),
            format_instant(over.ended_at),
            status,
            reply.status,
            error,
            held.held_by,
            reply.timing,
            reply.sends,
        )
    )


def _refuse(tx: TasksTx, over: AttemptOver) -> None:
    """The run is no longer ours: cancelled, ended by its callback, or taken over. The result is
    dropped, and an event says so."""
    data = {
        "task_id": over.held.task.id,
        "attempt": over.held.attempt,
        "reason": "TOKEN_VOID",
        "kind": over.reply.kind,
        "response_code": over.reply.status,
    }
    tx.events.append("RUN", over.held.run_id, "RUN_RESULT_REFUSED", data)
