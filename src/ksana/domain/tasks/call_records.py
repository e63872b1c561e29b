"""What a run keeps of its calls, and how it is read again. Pure.

There is such a record for every firing, so what the run's own row says too is not written again: of
the headers that every call has only the sender and the attempt are kept, and an attempt is an array
without the names of its members. Both are put together when they are read. Runs that are older than
this form, and attempts of another kind (a job's, a lost one), have JSON objects, which are read as
they are.
"""

from typing import Any, Final

import msgspec

from ksana.base.instant import Instant, Micros, format_instant
from ksana.domain.tasks.records import Run

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

_MILLISECOND: Final = 1000
_LENGTH: Final = 13

MOST_GROWTH: Final = 4
"""A run's attempts are at most so many times longer when they are shown, besides what they are."""


class CallEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One call, as an entry of a run's attempts."""

    attempt: int
    started_at: Instant
    took_us: Micros
    status: str
    response_code: int | None
    error: str | None
    instance: str
    sends: int
    dns_us: Micros
    connect_us: Micros
    tls_us: Micros
    first_byte_us: Micros
    total_us: Micros


def write_call(entry: CallEntry) -> bytes:
    """An entry of a run's attempts."""
    return _encode(entry)


def read_attempts(text: str) -> list[Any]:
    """A run's attempts, as they are shown; none if the text cannot be read."""
    try:
        return [_show(one) if isinstance(one, list) else one for one in _decode(text)]
    except (msgspec.DecodeError, TypeError, ValueError):
        return []


def _show(entry: list[Any]) -> dict[str, Any]:
    attempt, started_at, took_us, status, code, error, instance, sends, *timing = entry[:_LENGTH]
    dns_ms, connect_ms, tls_ms, first_byte_ms, total_ms = [us / _MILLISECOND for us in timing]
    shown = {
        "attempt": attempt,
        "started_at": format_instant(started_at),
        "ended_at": format_instant(started_at + took_us),
        "status": status,
        "response_code": code,
        "error": error,
        "instance": instance,
        "timing": {
            "dns_ms": dns_ms,
            "connect_ms": connect_ms,
            "tls_ms": tls_ms,
            "first_byte_ms": first_byte_ms,
            "total_ms": total_ms,
        },
    }
    return shown if sends == 1 else {**shown, "sends": sends}


def span_id_of(uid: str, attempt: int) -> str:
    """The span that an attempt is to its target. Retries share the run's trace; each is a span of
    its own."""
    first = uid[-16:]
    return first if attempt <= 1 else f"{int(first, 16) ^ attempt:016x}"


def name_call(
    uid: str, job_id: str, scheduled: str, attempt: int, trace_id: str, agent: str
) -> tuple[tuple[str, str], ...]:
    """The headers of every call."""
    return (
        ("User-Agent", agent),
        ("X-Ksana-Run-Id", uid),
        ("X-Ksana-Job-Id", job_id),
        ("X-Ksana-Scheduled-At", scheduled),
        ("X-Ksana-Attempt", str(attempt)),
        ("traceparent", f"00-{trace_id}-{span_id_of(uid, attempt)}-01"),
    )


def write_headers(agent: str, attempt: int, before: str, after: str) -> str:
    """The headers of a call as they are kept: those before the ones of every call, and those behind
    them, as the inside of JSON objects. The agent is a word of ours and needs no escaping."""
    if after:
        return f'["{agent}",{attempt},{{{before}}},{{{after}}}]'
    return f'["{agent}",{attempt},{{{before}}}]'


def read_headers(run: Run, job_id: str | None) -> Any:
    """The headers of a run's last call, as they are shown; None if there was none, or the text
    cannot be read."""
    try:
        kept = _decode(run.request_headers or "null")
        if not isinstance(kept, list):
            return kept
        agent, attempt, before, *after = kept
        scheduled = format_instant(run.scheduled_time)
        named = name_call(run.uid, job_id or "", scheduled, attempt, run.trace_id, agent)
        return {**before, **dict(named), **(after[0] if after else {})}
    except (msgspec.DecodeError, TypeError, ValueError):
        return None
