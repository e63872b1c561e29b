"""What the queue's endpoints answer around jobs and leases, for the API's description. The handlers
write these as plain objects, because most are answered for every job; tests hold what is answered
against them."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ksana.api.core.explain import ReasonView
from ksana.api.queue.claims import ClaimedJobView, CompactJob, HeldLeaseView, JobView, LeaseView
from ksana.api.queue.views import HolderView, PointView, ReleaseAnswer, ResultView
from ksana.service.queue.stats import PriorityDepth


class JobsAnswer(msgspec.Struct, frozen=True):
    """The jobs of a batch, in its order."""

    jobs: list[JobView]


class JobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first."""

    jobs: list[JobView]
    next_cursor: str | None


class JobDetail(msgspec.Struct, frozen=True):
    """A job and how it ended."""

    job: JobView
    result: ResultView | None


class CompactOrClaimedJob(CompactJob, frozen=True, gc=False):
    """A claimed job: whole, or with `brief` only what is not null or usual."""

    cancel_requested: bool | UnsetType = UNSET
    cancel_reason: str | UnsetType | None = UNSET
    progress: float | UnsetType | None = UNSET
    note: str | UnsetType | None = UNSET
    started_at: str | UnsetType | None = UNSET
    finished_at: str | UnsetType | None = UNSET


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim got: `job` is the first, `jobs` all of them where more than one was asked for.
    With `lease` they come with their leases; with `brief` only `jobs` comes."""

    job: ClaimedJobView | UnsetType = UNSET
    jobs: list[CompactOrClaimedJob] | UnsetType = UNSET
    lease: HeldLeaseView | UnsetType = UNSET
    leases: list[HeldLeaseView] | UnsetType = UNSET


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job or to one of its leases."""

    ts: str
    type: str
    data: dict[str, Any]
    id: int
    entity_type: str
    entity_id: str


class JobEvents(msgspec.Struct, frozen=True):
    """What happened, in order."""

    events: list[JobEvent]
    truncated: bool


class ExplainEvent(msgspec.Struct, frozen=True):
    """An event that the explanation rests on."""

    ts: str
    type: str
    data: dict[str, Any]


class JobExplained(msgspec.Struct, frozen=True):
    """Why a job waits, runs, or ended as it did."""

    job_id: str
    state: str
    summary: str
    reasons: list[ReasonView]
    position: int | None
    holders: list[LeaseView]
    facts: dict[str, Any]
    events: list[ExplainEvent]


class HolderList(msgspec.Struct, frozen=True):
    """Who holds the capacity: leases that are active, the first to run out first."""

    leases: list[LeaseView]


class LeaseDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A lease, or why there is none now and when to ask again."""

    approved: bool
    job: JobView
    lease: HeldLeaseView | UnsetType = UNSET
    retry_after_sec: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    holders: list[HolderView] | UnsetType = UNSET


class HeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """One item's answer: the lease and the job, or a refusal with `code`, `message`, `status`."""

    lease: LeaseView | UnsetType = UNSET
    job: JobView | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    status: int | UnsetType = UNSET
    current: Any | UnsetType = UNSET


class HeartbeatResults(msgspec.Struct, frozen=True):
    """An answer for each item, in order."""

    results: list[HeartbeatResult]


class ReleaseResult(HeartbeatResult, frozen=True, kw_only=True):
    """One item's answer: lease, job and result, with `brief` three members; or a refusal."""

    result: ResultView | UnsetType | None = UNSET
    lease_id: str | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    job_state: str | UnsetType = UNSET


class ReleaseResults(msgspec.Struct, frozen=True):
    """An answer for each item, in order."""

    results: list[ReleaseResult]
    next: ClaimAnswer | UnsetType | None = UNSET
    """What was claimed with them, if that was asked for; null: nothing."""


class ReleaseOutcome(ReleaseAnswer, frozen=True, kw_only=True):
    """A release, answered."""

    next: ClaimAnswer | UnsetType | None = UNSET
    """What was claimed with it, if that was asked for; null: nothing."""


class LeaseAnswer(msgspec.Struct, frozen=True):
    """One lease."""

    lease: LeaseView


class CapacityFigures(msgspec.Struct, frozen=True):
    """Units of capacity."""

    total: int
    used: int
    reserved: int


class QueueFigures(msgspec.Struct, frozen=True):
    """The queue at this moment."""

    capacity: CapacityFigures
    jobs: dict[str, int]
    leases: dict[str, int]


class DepthAnswer(msgspec.Struct, frozen=True):
    """How many jobs wait and are held, by priority, the most urgent first."""

    priorities: list[PriorityDepth]


class SeriesAnswer(msgspec.Struct, frozen=True):
    """A figure over time."""

    metric: str
    bucket: str
    points: list[PointView]
