"""Claims over tables in memory for jobs that are begun later: who gets them, and what those are
told who get none."""

from typing import Any

import pytest

from ksana.domain.queue.classes import Wants
from ksana.ports.pages import MAX_PAGE_BYTES
from ksana.service.queue.claims import LATER, NOTHING, Claim, Claimed
from tests.unit.queue_tables import ANY, OURS, THEIRS, Claims, ClaimTx

pytestmark = pytest.mark.spec("Q16")

TO_SPARE: dict[str, Any] = {"cost": 1, "attempts": 0, "max_attempts": 2}
LAST: dict[str, Any] = {"cost": 1, "attempts": 0, "max_attempts": 1}


def claim(limit: int, ahead: int, wants: Wants = ANY, *, can_wait: bool = False) -> Claim:
    return Claim("w", wants, limit, True, ahead=ahead, can_wait=can_wait)


def numbers(claimed: Claimed) -> list[int]:
    """Which jobs these are, by the order in which they came."""
    return [job.seq for job in claimed.taken]


@pytest.fixture(params=[False, True], ids=["alone", "among instances"])
def claims(request: pytest.FixtureRequest) -> Claims:
    tx = ClaimTx(is_shared=request.param)
    if request.param:
        tx.capacity.set_aside(OURS, 100)
    return Claims(tx)


def test_what_is_begun_at_once_is_handed_out_before_what_is_begun_later(claims: Claims) -> None:
    for _ in range(9):
        claims.tx.add(**TO_SPARE)
    got = claims.take_together(claim(2, 2), claim(3, 1), claim(3, 0), claim(2, 2))
    assert [numbers(one) for one in got] == [[6, 7], [1, 2, 8], [3, 4, 5], [9]]


def test_only_jobs_with_an_attempt_to_spare_are_handed_out_to_be_begun_later(
    claims: Claims,
) -> None:
    for attempts in (LAST, LAST, LAST, TO_SPARE, LAST):
        claims.tx.add(**attempts)
    assert numbers(claims.take_together(claim(5, 2))[0]) == [1, 2, 3, 4]
    assert claims.take_together(claim(5, 5)) == [NOTHING]
    assert numbers(claims.take_together(claim(5, 0))[0]) == [5]


def test_who_has_all_it_begins_at_once_need_not_be_able_to_wait() -> None:
    """What it would begin later is no reason to bring home what others use."""
    claims = Claims(ClaimTx(is_shared=True))
    claims.tx.capacity.set_aside(OURS, 10)
    claims.tx.capacity.set_aside(THEIRS, 90)
    claims.tx.add(cost=10)
    claims.tx.add(cost=20)
    first, second = claims.take_together(claim(2, 1), claim(1, 0, can_wait=True))
    assert (numbers(first), second) == ([1], LATER)
    assert "lock" not in claims.tx.take_log()


@pytest.mark.parametrize("has_lease", [False, True], ids=["claims", "leases"])
@pytest.mark.parametrize(("more", "answer"), [(0, NOTHING), (1, LATER)])
def test_behind_large_payloads_who_gets_none_is_told_to_come_again(
    has_lease: bool, more: int, answer: Claimed
) -> None:
    """They fill an answer, so that what waits behind them may have been left out."""
    claims = Claims()
    claims.tx.add(payload_json="x" * (MAX_PAGE_BYTES // 4 + more))
    asked = Claim("w", ANY, has_lease=has_lease)
    first, *others = claims.take_together(asked, asked, asked)
    assert (numbers(first), others) == ([1], [answer, answer])
