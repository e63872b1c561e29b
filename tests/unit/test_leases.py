"""Who may act for what is held: by its token, by the worker's name, or by being the only one."""

import pytest

from ksana.base.ids import NO_TOKEN, read_token, show_token
from ksana.domain.leases import Proof, judge_holder

pytestmark = pytest.mark.spec("X12")

HELD = 0xA1


@pytest.mark.parametrize(
    ("proof", "claims", "wanted"),
    [
        (Proof(token=HELD), 5, None),
        (Proof(token=HELD, worker_id="w"), 5, None),
        (Proof(worker_id="w"), 5, None),
        (Proof(), 1, None),
        (Proof(), 0, None),
        (Proof(), 2, "NO_PROOF"),
        (Proof(token=HELD + 1), 1, "WRONG_TOKEN"),
        (Proof(token=HELD + 1, worker_id="w"), 1, "WRONG_TOKEN"),
        (Proof(token=HELD, worker_id="x"), 1, "OTHER_WORKER"),
        (Proof(worker_id="x"), 1, "OTHER_WORKER"),
    ],
)
def test_all_that_is_shown_must_fit(proof: Proof, claims: int, wanted: str | None) -> None:
    assert judge_holder(proof, HELD, "w", claims) == wanted


def test_no_token_fits_nothing_not_even_itself() -> None:
    assert judge_holder(Proof(token=NO_TOKEN), NO_TOKEN, "w", 1) == "WRONG_TOKEN"


def test_a_token_is_read_back_as_it_was_shown() -> None:
    for token in (1, HELD, 2**63 - 1):
        assert len(show_token(token)) == 16
        assert read_token(show_token(token)) == token


@pytest.mark.parametrize("text", ["", "-1", "+1", " a", "a_1", "g", "\u0661", "f" * 17])
def test_what_is_none_of_ours_fits_nothing(text: str) -> None:
    assert read_token(text) == NO_TOKEN
