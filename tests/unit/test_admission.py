"""Admission and the other rules of the queue, without a store."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.instant import SECOND
from ksana.domain.histogram import bucket_of, bucket_seconds, pack, quantile
from ksana.domain.lifecycle import JOB
from ksana.domain.queue.admission import (
    AHEAD_BYTES,
    AdmissionRequest,
    Capacity,
    choose_ahead,
    find_denial,
    may_reserve,
    retry_after_us,
)
from ksana.domain.queue.attempt_ends import backoff_us
from ksana.domain.queue.changes import can_report
from ksana.domain.queue.classes import Wants, accepts, class_of, needs_of
from ksana.domain.queue.jobs import ReadyJob, release_digest
from ksana.domain.queue.turns import next_turn
from tests.unit.queue_rows import a_ready_job

NOW = 1_767_225_600_000_000


def room(
    used: int = 0,
    *,
    kept: int = 0,
    kept_for: str | None = None,
    urgency: int = 2,
    until: int = NOW + 1,
) -> Capacity:
    return Capacity(100, used, 0, kept, kept_for, urgency, until)


def ask(cost: int, urgency: int = 2, job_id: str = "me", addon: str = "a") -> AdmissionRequest:
    return AdmissionRequest(job_id, addon, cost, urgency)


@pytest.mark.spec("Q9")
def test_what_fits_is_admitted_to_the_last_unit() -> None:
    assert find_denial(room(60), ask(40), NOW) is None


@pytest.mark.spec("Q9")
def test_what_does_not_fit_is_told_why_in_the_words_of_the_contract() -> None:
    denial = find_denial(Capacity(70, 60, 1, 0, None, 0, 0), ask(30), NOW)
    assert denial is not None
    assert (denial.code, denial.reason) == (
        "CAPACITY_EXCEEDED",
        "Capacity exceeded: used=60, requested=30, capacity=70",
    )


@pytest.mark.spec("Q9")
def test_a_share_binds_its_addon_even_when_there_is_room() -> None:
    denial = find_denial(room(0), ask(11), NOW, share=30, addon_used=20)
    assert denial is not None
    assert denial.code == "SHARE_EXCEEDED"
    assert find_denial(room(0), ask(10), NOW, share=30, addon_used=20) is None


@pytest.mark.spec("Q9")
@pytest.mark.parametrize(
    ("urgency", "job_id", "until", "is_admitted"),
    [
        (2, "me", NOW + 1, False),
        (3, "me", NOW + 1, False),
        (1, "me", NOW + 1, True),
        (2, "large", NOW + 1, True),
        (2, "me", NOW, True),
    ],
)
def test_kept_units_bind_the_equal_and_the_lower_until_they_lapse(
    urgency: int, job_id: str, until: int, is_admitted: bool
) -> None:
    kept = room(50, kept=40, kept_for="large", until=until)
    assert (find_denial(kept, ask(20, urgency, job_id), NOW) is None) is is_admitted


@pytest.mark.spec("Q9")
def test_only_the_highest_waiting_priority_keeps_units() -> None:
    assert may_reserve(room(100), ask(10), NOW, None)
    assert may_reserve(room(100), ask(10), NOW, 2)
    assert not may_reserve(room(100), ask(10), NOW, 1)
    taken = room(100, kept=5, kept_for="other")
    assert not may_reserve(taken, ask(10), NOW, None)
    assert may_reserve(taken, ask(10, urgency=0), NOW, None)
    assert may_reserve(taken, ask(10, job_id="other"), NOW, None)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 3)), max_size=30))
@pytest.mark.spec("Q9")
def test_no_order_of_requests_passes_the_total(asks: list[tuple[int, int]]) -> None:
    now_room = room()
    for number, (cost, urgency) in enumerate(asks):
        one = ask(cost, urgency, f"j{number}")
        if find_denial(now_room, one, NOW) is None:
            now_room = now_room.with_grant(cost, one.job_id)
        elif may_reserve(now_room, one, NOW, None):
            now_room = now_room.with_reserve(one, NOW + 1)
        assert now_room.used <= now_room.total


@pytest.mark.spec("Q9")
def test_the_next_try_comes_when_the_first_lease_may_end_within_bounds() -> None:
    assert retry_after_us(NOW, None) == 10 * SECOND
    assert retry_after_us(NOW, NOW + 3_500_000) == 4 * SECOND
    assert retry_after_us(NOW, NOW - SECOND) == SECOND


@pytest.mark.spec("Q11")
def test_the_rest_after_a_failure_doubles_up_to_five_minutes() -> None:
    assert [backoff_us(n) // SECOND for n in (1, 2, 3, 6, 7, 50)] == [5, 10, 20, 160, 300, 300]


@pytest.mark.spec("Q2")
def test_a_need_is_met_by_its_capability_alone() -> None:
    gpu = class_of("a", "t", 1, needs_of({"gpu_required": True, "cpu_heavy": False}))
    assert gpu.needs == ("gpu_required",)
    assert not accepts(gpu, Wants())
    assert accepts(gpu, Wants(capabilities=(("gpu_available", True),)))
    assert not accepts(gpu, Wants(capabilities=(("gpu_available", False),)))
    net = class_of("a", "t", 1, ("network_heavy",))
    assert accepts(net, Wants())
    assert not accepts(net, Wants(capabilities=(("network_heavy", False),)))


@pytest.mark.spec("Q2")
def test_turns_rotate_keys_and_keep_the_rest_by_age() -> None:
    assert next_turn(False, None, None, None) == 0
    assert next_turn(False, 3, 9, None) == 9
    assert next_turn(True, 3, 9, None) == 3
    assert next_turn(True, 3, 9, 7) == 8


@pytest.mark.spec("Q5", "X12")
def test_only_the_moves_of_the_table_can_be_reported() -> None:
    states = JOB.states
    legal = {(a, b) for a in states for b in states if a != b and can_report(a, b)}
    assert legal == {
        ("CLAIMED", "PREPARING"),
        ("CLAIMED", "LEASE_PENDING"),
        ("PREPARING", "LEASE_PENDING"),
    }
    assert not any(
        can_report(state, state) for state in ("QUEUED", "DONE", "FAILED", "CANCELED", "TIMEOUT")
    )


@pytest.mark.spec("Q11")
def test_a_digest_tells_releases_apart_and_knows_the_same_again() -> None:
    first = release_digest("FAILED", "1", "x", "")
    assert first == release_digest("FAILED", "1", "x", "")
    others = [
        ("SUCCEEDED", "1", "x", ""),
        ("FAILED", "", "1x", ""),
        ("FAILED", "1", None, "x"),
        ("FAILED", "1x", "", ""),
    ]
    assert first not in {release_digest(*other) for other in others}


@given(st.lists(st.floats(0.0001, 100_000), min_size=1, max_size=200))
@pytest.mark.spec("Q15")
def test_a_quantile_lies_within_a_bucket_of_the_true_one(spans: list[float]) -> None:
    counts: dict[int, int] = {}
    for span in spans:
        counts[bucket_of(span)] = counts.get(bucket_of(span), 0) + 1
    found = quantile(pack(counts), 0.95)
    assert found is not None
    true = sorted(spans)[max(0, -(-len(spans) * 95 // 100) - 1)]
    assert (
        bucket_seconds(bucket_of(true) - 1) / 1.001
        <= found
        <= bucket_seconds(bucket_of(true)) * 1.001
        or true <= 0.001
    )
    assert quantile(pack({}), 0.95) is None


def ahead_of(jobs: list[ReadyJob], at_once: int, total: int = 1_000, used: int = 0) -> list[int]:
    capacity = Capacity(total, used, 0, 0, None, 0, 0)
    return [job.seq for job in choose_ahead(jobs, at_once, capacity)]


@pytest.mark.spec("Q16")
def test_what_is_begun_later_has_an_attempt_to_spare_and_leaves_others_half() -> None:
    def job(seq: int, **members: Any) -> ReadyJob:
        spare = {"cost_units": 1, "attempts": 0, "max_attempts": 2, "payload_json": "{}"}
        return a_ready_job(seq=seq, **{**spare, **members})

    jobs = [job(seq) for seq in range(6)]
    assert ahead_of(jobs, 6) == ahead_of(jobs, 9) == ahead_of(jobs, 0) == [0, 1, 2, 3, 4, 5]
    assert ahead_of(jobs, 0, total=6) == [0, 1, 2]
    assert ahead_of(jobs, 2, total=9) == [0, 1, 2, 3]
    assert ahead_of(jobs, 2, total=9, used=4) == [0, 1]
    assert ahead_of(jobs, 4, total=6) == [0, 1, 2, 3]  # what is begun at once is not its concern
    last = job(2, attempts=1)
    assert ahead_of([*jobs[:2], last, *jobs[3:]], 1) == [0, 1]
    assert ahead_of([*jobs[:2], last, *jobs[3:]], 3) == [0, 1, 2, 3, 4, 5]
    assert ahead_of([job(0), job(1, attempts=8, max_attempts=10), job(2)], 0) == [0, 1, 2]
    large = job(2, payload_json="x" * AHEAD_BYTES)
    assert ahead_of([*jobs[:2], large, *jobs[3:]], 1) == [0, 1]
    assert ahead_of([large, *jobs[3:]], 0) == [2]
    assert ahead_of([job(0, payload_json="x" * (AHEAD_BYTES + 1))], 0) == []
    assert ahead_of([*jobs[:2], job(2, cost_units=499)], 0) == [0, 1]
    assert ahead_of([*jobs[:2], job(2, cost_units=498)], 0) == [0, 1, 2]
