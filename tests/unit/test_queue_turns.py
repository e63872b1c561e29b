"""The turns of queue jobs that wait: by age, and in rotation among fairness keys."""

import pytest

from ksana.domain.queue.turns import Turns, next_turn
from tests.unit.queue_rows import Numbers


@pytest.mark.spec("Q4")
@pytest.mark.parametrize(
    ("has_key", "head", "tail", "key_tail", "turn"),
    [
        (False, 2, 5, None, 5),
        (False, None, None, None, 0),
        (True, 2, 5, None, 2),
        (True, None, None, None, 0),
        (True, 2, 5, 4, 5),
        (True, 7, 9, 3, 7),
        (True, None, None, 3, 4),
    ],
)
def test_keys_are_served_in_rotation_and_the_rest_by_age(
    has_key: bool, head: int | None, tail: int | None, key_tail: int | None, turn: int
) -> None:
    assert next_turn(has_key, head, tail, key_tail) == turn


@pytest.mark.spec("Q4")
def test_jobs_of_one_transaction_count_for_each_other_and_ask_once() -> None:
    numbers = Numbers(2, 5, k=3)
    turns = Turns(numbers)
    assert [turns.give(1, "k") for _ in range(3)] == [4, 5, 6]
    assert [turns.give(1, "new") for _ in range(3)] == [2, 3, 4]
    assert [turns.give(1, None) for _ in range(2)] == [6, 6], "behind the last of all"
    assert (turns.front(1), numbers.asked) == (2, 4)
    empty = Turns(Numbers())
    assert [empty.give(0, key) for key in (None, "a", "a", None, "b")] == [0, 0, 1, 1, 0]
    assert empty.front(0) == 0
    other = Turns(Numbers())
    assert [other.give(0, key) for key in ("a", "a", None)] == [0, 1, 1]
    known = Numbers()
    assert (Turns(known, {0: None}).give(0, None), known.asked) == (0, 0), "nothing waits there"
