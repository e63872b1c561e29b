"""What runs and jobs agree on: ids that follow from each other, and whose word counts."""

import uuid

import pytest

from ksana.base.ids import new_ordered_uuids, new_run_uid, new_run_uids, new_uuid
from ksana.domain.handover import (
    HandedJob,
    find_owner,
    job_id_of,
    pick_handed_over,
    request_id_of,
)

pytestmark = pytest.mark.spec("B5")

NOW = 1_800_000_000_000_000


def handed(job_id: str, request_id: str) -> HandedJob:
    return HandedJob(job_id, request_id, "DONE", "{}", NOW)


def test_each_attempt_of_each_run_has_a_job_id_of_its_own() -> None:
    uids = new_run_uids(NOW, 300)
    ids = {job_id_of(uid, attempt) for uid in uids for attempt in range(1, 12)}
    assert len(ids) == 300 * 11
    for job_id in ids:
        read = uuid.UUID(job_id)
        assert (str(read), read.version, read.variant) == (job_id, 8, uuid.RFC_4122)


def test_job_ids_lie_in_an_index_in_the_order_of_their_time() -> None:
    early, late = new_run_uid(NOW), new_run_uid(NOW + 5_000)
    assert job_id_of(early, 1000) < job_id_of(late, 1)


def test_no_id_that_is_made_otherwise_is_taken_for_one_of_a_run() -> None:
    ours = job_id_of(new_run_uid(NOW), 1)
    others = [*new_ordered_uuids(NOW, 500), *(new_uuid() for _ in range(500))]
    assert pick_handed_over([*others, ours]) == [ours]


def test_a_job_is_believed_only_if_its_id_follows_from_what_it_claims() -> None:
    uid = new_run_uid(NOW)
    good = handed(job_id_of(uid, 3), request_id_of(uid, 3))
    assert find_owner(good) == (uid, 3)
    assert find_owner(handed(good.job_id, request_id_of(uid, 4))) is None
    assert find_owner(handed(new_uuid(), good.request_id)) is None
    for text in ("", "run:", f"run:{uid}:", f"run:{uid}:0", f"run:{uid}:x", f"job:{uid}:3"):
        assert find_owner(handed(good.job_id, text)) is None
