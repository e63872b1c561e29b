"""What an attempt's end means for its run: done, again later, waiting for a callback, or failed.
Pure."""

import hashlib
from typing import Final, Literal

import msgspec

from ksana.base.instant import HOUR, Instant, Micros
from ksana.domain.tasks.classify import Verdict
from ksana.domain.tasks.records import RetryPolicy

EndStatus = Literal["SUCCESS", "FAILED", "TIMEOUT", "RETRYING", "CALLBACK_PENDING"]


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The run's next status, and when it must be looked at again."""

    status: EndStatus
    reason: str
    next_retry_time: Instant | None = None
    callback_deadline: Instant | None = None


_DONE: Final = Outcome("SUCCESS", "ANSWERED_2XX")


def retry_delay(policy: RetryPolicy, attempt: int, uid: str) -> Micros:
    """The pause after failed attempt `attempt`. Jitter comes from a hash, so the decision can be
    replayed."""
    delay = policy.initial_delay_us
    if policy.strategy == "exponential":
        delay = min(policy.initial_delay_us << min(attempt - 1, 40), policy.max_delay_us)
    if policy.jitter_us:
        draw = int.from_bytes(
            hashlib.blake2b(f"{uid}:{attempt}".encode(), digest_size=8).digest(), "big"
        )
        delay += draw % (policy.jitter_us + 1)
    return delay


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
