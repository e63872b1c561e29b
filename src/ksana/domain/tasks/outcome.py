"""What an answer means (success, another try, or the end), and so the end of an attempt for its
run: done, again later, waiting for a callback, or failed. Pure."""

import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from ksana.base.instant import HOUR, SECOND, Instant, Micros, format_instant, to_instant
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks.changes import (
    ALERTING,
    EVENT_OF,
    LAST_STATUS,
    MAX_ERROR,
    METRIC_OF,
    AttemptRecord,
    RunChange,
    retry_delay,
)
from ksana.domain.tasks.records import ClaimedRun, RetryPolicy

ReplyKind = Literal["answered", "timeout", "unreachable", "refused", "aborted"]
"""How a call ended, in the words of the Caller port."""

VerdictKind = Literal["success", "retry", "fail", "timeout-retry"]
"""retry and timeout-retry differ only in what the run is called if this was the last try: failed or
timeout."""

MAX_RETRY_AFTER: Final[Micros] = HOUR
"""A target may put us off this long at most."""

_RETRIED_STATUSES: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_DEFAULT_ERRORS: Final[dict[str, str]] = {
    "timeout": "no answer in time",
    "unreachable": "the target could not be reached",
    "refused": "the egress rules forbid the address",
    "aborted": "the call was ended before an answer came",
}

_MONTHS: Final = (
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
)
# The three forms RFC 9110 asks readers to know: IMF-fixdate, RFC 850, asctime.
_DATE_FORMS: Final = (
    re.compile(
        r"\w{3}, (?P<d>\d\d) (?P<mon>\w{3}) (?P<y>\d{4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) GMT\Z",
        re.ASCII,
    ),
    re.compile(
        r"\w+, (?P<d>\d\d)-(?P<mon>\w{3})-(?P<y>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) GMT\Z",
        re.ASCII,
    ),
    re.compile(
        r"\w{3} (?P<mon>\w{3}) (?P<d>[ \d]\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) (?P<y>\d{4})\Z",
        re.ASCII,
    ),
)


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What to do about an attempt, why in one line, and how long the target asked us to wait."""

    outcome: VerdictKind
    error: str | None = None
    retry_after_us: Micros | None = None


_SUCCESS: Final = Verdict("success")


def classify(
    reply_kind: ReplyKind,
    status: int | None,
    retry_after: str | None = None,
    now: Instant = 0,
    error: str | None = None,
) -> Verdict:
    """Judge one reply. `error` is the reply's own line, used when there was no answer."""
    if reply_kind == "answered" and status is not None:
        if 200 <= status < 300:
            return _SUCCESS
        line = describe_status(status)
        if status >= 500 or status in _RETRIED_STATUSES:
            return Verdict("retry", line, parse_retry_after(retry_after, now))
        return Verdict("fail", line)
    line = clip_error(error or _DEFAULT_ERRORS.get(reply_kind, "the answer had no status"))
    if reply_kind == "timeout":
        return Verdict("timeout-retry", line)
    if reply_kind in ("unreachable", "aborted"):
        return Verdict("retry", line)
    return Verdict("fail", line)


def describe_status(status: int) -> str:
    """Write a status as people read it: `HTTP 503 Service Unavailable`."""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def parse_retry_after(text: str | None, now: Instant) -> Micros | None:
    """Read Retry-After, in seconds or as a date; None if absent, unreadable or past; never more
    than an hour."""
    if text is None or len(text) > 64:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        wait = int(text) * SECOND
    else:
        at = _parse_http_date(text, now)
        if at is None:
            return None
        wait = at - now
    return min(wait, MAX_RETRY_AFTER) if wait > 0 else None


def clip_error(line: str) -> str:
    """Make one line of at most 1024 characters; what cannot be printed, and could steer a terminal,
    is shown as �."""
    line = " ".join(line.split())
    if not line.isprintable():
        line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return line if len(line) <= MAX_ERROR else line[: MAX_ERROR - 1] + "…"


def _parse_http_date(text: str, now: Instant) -> Instant | None:
    for form in _DATE_FORMS:
        match = form.match(text)
        if match is None:
            continue
        year = int(match["y"])
        if (
            year < 100
        ):  # RFC 850 dates: the year with these two digits that is not more than 50 years ahead
            this_year = datetime.fromtimestamp(now // SECOND, UTC).year
            year += this_year - this_year % 100
            year -= 100 if year > this_year + 50 else 0
        try:
            month = _MONTHS.index(match["mon"].lower()) + 1
            return to_instant(
                datetime(
                    year,
                    month,
                    int(match["d"]),
                    int(match["h"]),
                    int(match["m"]),
                    int(match["s"]),
                    tzinfo=UTC,
                )
            )
        except ValueError:
            return None
    return None


EndStatus = Literal["SUCCESS", "FAILED", "TIMEOUT", "RETRYING", "CALLBACK_PENDING", "CANCELED"]


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The run's next status, and when it must be looked at again."""

    status: EndStatus
    reason: str
    next_retry_time: Instant | None = None
    callback_deadline: Instant | None = None


_DONE: Final = Outcome("SUCCESS", "ANSWERED_2XX")
UNKNOWN: Final = Outcome("FAILED", "OUTCOME_UNKNOWN_AT_MOST_ONCE")
MAX_ATTEMPTS_KEPT: Final = 100
"""The newest of a run."""
_FINAL: Final = RUN.final
_encode = msgspec.json.Encoder().encode


def decide_outcome(
    verdict: Verdict,
    policy: RetryPolicy,
    attempt: int,
    uid: str,
    now: Instant,
    *,
    is_async: bool,
    callback_timeout_us: Micros,
) -> Outcome:
    """Decide from the verdict on the last attempt."""
    if verdict.outcome == "success":
        if is_async:
            return Outcome(
                "CALLBACK_PENDING", "ACCEPTED", callback_deadline=now + callback_timeout_us
            )
        return _DONE
    if verdict.outcome == "fail":
        return Outcome("FAILED", "NOT_RETRYABLE")
    if attempt <= policy.max_retries:
        delay = max(retry_delay(policy, attempt, uid), min(verdict.retry_after_us or 0, HOUR))
        return Outcome("RETRYING", "RETRY_LEFT", next_retry_time=now + delay)
    if verdict.outcome == "timeout-retry":
        return Outcome("TIMEOUT", "RETRIES_USED_UP" if policy.max_retries else "NO_RETRIES")
    return Outcome("FAILED", "RETRIES_USED_UP" if policy.max_retries else "NO_RETRIES")


def decide_attempt(
    run: ClaimedRun, verdict: Verdict, kind: ReplyKind, sends: int, now: Instant
) -> Outcome:
    """Decide for a run that is held. `sends` is how often the request was written to a connection;
    0 means that nobody can have got it."""
    if verdict is _SUCCESS and run.exec_type != "ASYNC":
        return _DONE  # as nearly every attempt ends
    definition = run.task.definition
    decided = decide_outcome(
        verdict,
        definition.retry,
        run.attempt,
        run.uid,
        now,
        is_async=run.exec_type == "ASYNC",
        callback_timeout_us=definition.callback_timeout_us,
    )
    if (
        decided.status == "RETRYING"
        and definition.options.delivery == "at_most_once"
        and kind != "answered"
        and sends > 0
    ):
        return UNKNOWN
    return decided


def end_attempt(
    run: ClaimedRun,
    decided: Outcome,
    error: str | None,
    record: AttemptRecord,
    attempt: bytes,
    started_at: Instant,
    ended_at: Instant,
) -> RunChange:
    """The change that records an attempt. `attempt` is its entry in `attempts[]`, as JSON."""
    status, reason = decided.status, decided.reason
    is_final = status in _FINAL
    retry_at, deadline = decided.next_retry_time, decided.callback_deadline
    task = run.task
    # The reason is a word of ours and needs no escaping.
    data = f'{{"task_id":{task.id},"attempt":{run.attempt},"reason":"{reason}"'
    if record.response_code is not None:
        data += f',"response_code":{record.response_code}'
    if error is not None:
        data += f',"error":{_encode(error).decode()}'
    if retry_at is not None:
        data += f',"next_retry_time":"{format_instant(retry_at)}"'
    if status in ALERTING:
        data += ',"alert":true'
    # By position, in the order of the fields: one for every call, and names cost 0.9 µs more.
    return RunChange(
        run.run_id,
        task.id,
        "RUNNING",
        run.token,
        status,
        run.token,
        run.attempt,
        reason,
        error,
        started_at,
        ended_at if is_final else None,
        None,
        retry_at or deadline,
        None,
        retry_at,
        deadline,
        None,
        append_attempt(run.attempts, attempt),
        EVENT_OF[status],
        data + "}",
        METRIC_OF[status],
        ended_at - started_at,
        LAST_STATUS.get(status),
        is_final and run.is_counted and task.definition.concurrency_policy == "QUEUE",
        record,
    )


def append_attempt(attempts: str, record: bytes) -> str:
    """Add a record to the JSON array, keeping the newest."""
    if attempts == "[]":
        return f"[{record.decode()}]"
    kept: list[msgspec.Raw] = msgspec.json.decode(attempts, type=list[msgspec.Raw])
    return _encode([*kept[-MAX_ATTEMPTS_KEPT + 1 :], msgspec.Raw(record)]).decode()
