"""Hand-overs: a run that is done by a job of another surface. What both sides agree on. Pure.

    run ──starts──▶ job          in one transaction where both are in the store
    run ◀──ends──── job          the end of the job ends the attempt of the run

The job's id follows from the run's uid and its attempt, so nothing has to be stored to find the one
from the other, and submitting an attempt twice makes one job. It is a UUID of version 8, which
nothing else makes and no caller can choose: a glance at an id tells whether a run waits for it.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from ksana.base.instant import Instant

MAX_CONSTRAINTS: Final = 4096
"""Bytes of a queue job's constraints as JSON. They make its class, and every class is held in
memory."""

MAX_PAYLOAD: Final = 1024 * 1024
"""Bytes of a payload once its placeholders are filled."""

EndKind = Literal["done", "failed", "gave_up", "timeout", "canceled", "lost"]
"""gave_up: it failed, and whoever did it says that another try would not help."""

_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_MAX_ATTEMPT: Final = 0xFFF
_REQUEST = re.compile(r"run:([0-9a-f]{32}):([1-9][0-9]{0,3})\Z", re.ASCII)


class HandedEnd(msgspec.Struct, frozen=True, gc=False):
    """How a job ended, as the run that waits for it is told."""

    kind: EndKind
    error: str | None = None
    result: str | None = None
    """JSON text."""


class HandedJob(msgspec.Struct, frozen=True, gc=False):
    """A job as the run that waits for it sees it."""

    job_id: str
    request_id: str
    state: str
    payload: str
    created_at: Instant
    ended_at: Instant | None = None
    end: HandedEnd | None = None
    """None while it goes on."""
    has_begun: bool = False
    """Whether somebody may have worked on it."""


def job_id_of(uid: str, attempt: int) -> str:
    """The id of the job that an attempt of a run is handed over to. Ids of one time lie side by
    side in an index, as the uids do."""
    return (
        f"{uid[:8]}-{uid[8:12]}-8{attempt & _MAX_ATTEMPT:03x}"
        f"-{_VARIANT[uid[12]]}{uid[13:16]}-{uid[16:28]}"
    )


def pick_handed_over(job_ids: Iterable[str]) -> list[str]:
    """Those of these jobs that runs wait, or waited, for."""
    # The version of a UUID, as a literal: each job that ends is looked at.
    return [job_id for job_id in job_ids if job_id[14:15] == "8"]


def request_id_of(uid: str, attempt: int) -> str:
    """The request id under which an attempt is submitted: people find the run by it."""
    return f"run:{uid}:{attempt}"


def find_owner(job: HandedJob) -> tuple[str, int] | None:
    """The uid and the attempt of the run that waits for a job. None for a job that only claims to
    be waited for: anybody may choose a request id, nobody the job's id."""
    match = _REQUEST.match(job.request_id)
    if match is None or job.job_id != job_id_of(match[1], int(match[2])):
        return None
    return match[1], int(match[2])
