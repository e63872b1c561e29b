"""Governance jobs, objects and gates to decide about."""

from typing import Any

import msgspec

from ksana.domain.governance.changes import (
    GovernanceJobChange,
    check_job,
)
from ksana.domain.governance.events import KINDS
from ksana.domain.governance.jobs import (
    NewGovernanceJob,
    decide_enqueue,
)
from ksana.domain.governance.objects import (
    new_object,
)
from ksana.domain.governance.records import (
    GovernanceJob,
    GovernedObject,
    Rules,
)

NOW = 1_770_000_000_000_000


RULES = Rules()


KIND_OF = {kind.name: kind for kind in KINDS}


def a_job(**more: Any) -> GovernanceJob:
    new = NewGovernanceJob(
        job_id="job_0000000000000001",
        object_type="memory",
        object_id="m1",
        action="verify",
        urgency=1,
        run_at=NOW,
    )
    job = decide_enqueue(new, NOW).job
    return msgspec.structs.replace(job, seq=1, **more)


def an_object(object_type: str = "memory", **more: Any) -> GovernedObject:
    return msgspec.structs.replace(new_object(object_type, "m1", RULES, NOW), **more)


def check_event(change: GovernanceJobChange) -> None:
    """What is told is what the catalogue declares."""
    assert KIND_OF[change.event].allows({"reason", *change.data}), change
    check_job(change)
    if change.alert is not None:
        name, data = change.alert
        assert KIND_OF[name].allows({"reason", "alert", *data})
