"""The pause after a failed attempt."""

import hashlib

import pytest

from ksana.domain.retry import Backoff, delay_after

DOUBLING = Backoff(initial_delay_us=10, strategy="exponential", max_delay_us=1000)


@pytest.mark.spec("C14")
def test_a_fixed_pause_is_the_same_after_every_attempt() -> None:
    backoff = Backoff(initial_delay_us=7)
    assert [delay_after(backoff, attempt) for attempt in (0, 1, 2, 50)] == [7] * 4


@pytest.mark.spec("C14")
def test_a_pause_doubles_from_the_first_attempt_up_to_the_longest() -> None:
    pauses = [delay_after(DOUBLING, attempt) for attempt in range(10)]
    assert pauses == [10, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]
    assert delay_after(DOUBLING, 10**9) == 1000


@pytest.mark.spec("C14")
@pytest.mark.parametrize("strategy", ["fixed", "exponential"])
def test_the_jitter_is_added_from_a_hash_of_key_and_attempt(strategy: str) -> None:
    """A known value: every instance, of every version, waits equally long."""
    backoff = Backoff(initial_delay_us=10, strategy=strategy, jitter_us=3)  # type: ignore[arg-type]
    pauses = {}
    for attempt in range(1, 40):
        digest = hashlib.blake2b(f"job:{attempt}".encode(), digest_size=8).digest()
        added = int.from_bytes(digest, "big") % 4
        base = 10 if strategy == "fixed" else min(10 << (attempt - 1), 3_600_000_000)
        pauses[attempt] = delay_after(backoff, attempt, "job") - base
        assert pauses[attempt] == added
    assert set(pauses.values()) == {0, 1, 2, 3}
    assert delay_after(backoff, 1, "job") != delay_after(backoff, 1, "another")
