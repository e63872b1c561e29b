"""The settings of timers, tasks and callbacks."""

from typing import Annotated, Any, Final, Literal

import msgspec

from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Micros
from ksana.boot.settings.values import BASE_URL, SIZE, SWITCH, About, choice, duration, integer


class TimerSettings(msgspec.Struct, frozen=True):
    """What timers get that do not say."""

    default_timeout_us: Annotated[
        Micros,
        About(
            duration(MILLISECOND, DAY),
            "How long one attempt of a timer may take if it does not say.",
            ("KSANA_DEFAULT_TIMEOUT", "DEFAULT_TIMEOUT"),
        ),
    ] = 10 * SECOND
    max_retries: Annotated[
        int,
        About(
            integer(0, 1000),
            "Tries after the first, for timers that do not say.",
            ("KSANA_MAX_RETRIES", "MAX_RETRIES"),
        ),
    ] = 3
    retry_backoff_us: Annotated[
        Micros,
        About(
            duration(0, DAY),
            "Pause before each of these tries.",
            ("KSANA_RETRY_BACKOFF", "RETRY_BACKOFF"),
        ),
    ] = 5 * SECOND
    once_grace_us: Annotated[
        Micros, About(duration(0, DAY), "How far in the past a once timer may lie when it is made.")
    ] = SECOND


class TaskSettings(msgspec.Struct, frozen=True):
    """Firing and delivery, and what tasks get that do not say."""

    workers: Annotated[
        int,
        About(
            integer(1, 10_000),
            "Calls in flight at most, of timers and tasks.",
            ("KSANA_WORKERS", "WORKERS"),
            "--workers",
        ),
    ] = 64
    per_host: Annotated[int, About(integer(1, 10_000), "Calls in flight at most to one host.")] = 16
    request_timeout_us: Annotated[
        Micros,
        About(
            duration(MILLISECOND, DAY),
            "How long one attempt of a task may take if it does not say.",
        ),
    ] = 10 * SECOND
    max_retries: Annotated[
        int, About(integer(0, 1000), "Tries after the first, for tasks without a retry policy.")
    ] = 0
    misfire_grace_us: Annotated[
        Micros, About(duration(0, 30 * DAY), "How late a slot may start while instances run.")
    ] = MINUTE
    history_limit: Annotated[
        int, About(integer(1, 1_000_000), "Successful runs kept per task.")
    ] = 1000
    response_limit: Annotated[
        int, About(SIZE, "Bytes of a target's answer that are stored; 0 stores all.")
    ] = 64 * 1024
    max_queued: Annotated[
        int, About(integer(0, 100_000), "Runs of one task that may wait for their turn.")
    ] = 100
    follow_redirects: Annotated[int, About(integer(0, 5), "Redirects followed.")] = 0
    on_orphan: Annotated[
        Literal["retry", "fail"],
        About(choice("retry", "fail"), "What becomes of a run whose instance died."),
    ] = "retry"
    delivery: Annotated[
        Literal["at_least_once", "at_most_once"],
        About(
            choice("at_least_once", "at_most_once"),
            "Whether a call of unknown outcome is sent again.",
        ),
    ] = "at_least_once"
    plain_http: Annotated[
        Literal["own", "libcurl"],
        About(
            choice("own", "libcurl"),
            "What calls http:// targets: our own client, or libcurl as for https://.",
        ),
    ] = "own"
    dst_gap: Annotated[
        Literal["debian", "next", "skip", "shift"],
        About(
            choice("debian", "next", "skip", "shift"),
            "When a time falls into the hour that is left out.",
        ),
    ] = "debian"
    dst_overlap: Annotated[
        Literal["debian", "first", "second", "both"],
        About(choice("debian", "first", "second", "both"), "When a time comes twice."),
    ] = "debian"
    retry_on_callback_failure: Annotated[
        bool, About(SWITCH, "Whether a failed or missing callback is retried.")
    ] = False
    poll_interval_us: Annotated[
        Micros,
        About(
            duration(100 * MILLISECOND, MINUTE),
            "How often the store is asked although nothing was signalled.",
        ),
    ] = 5 * SECOND
    batch_limit: Annotated[
        int, About(integer(1, 10_000), "Due tasks taken in one transaction.")
    ] = 500


class CallbackSettings(msgspec.Struct, frozen=True):
    """How targets call back."""

    base_url: Annotated[
        str, About(BASE_URL, "How targets reach this server; if unset, the address it listens on.")
    ] = ""
    token_ttl_us: Annotated[
        Micros,
        About(
            duration(0, 365 * DAY), "How long a callback token lives after its run has finished."
        ),
    ] = HOUR
    identity_mode: Annotated[
        bool, About(SWITCH, "Accept callbacks that name task and run instead of a token.")
    ] = True


SECTIONS: Final[dict[str, type[Any]]] = {
    "timers": TimerSettings,
    "tasks": TaskSettings,
    "callback": CallbackSettings,
}
