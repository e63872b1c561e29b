"""Ids: their forms, and that no two are the same, over threads and over a fork."""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from ksana.base import ids

pytestmark = pytest.mark.spec("X7")
AT = 1_763_000_000_000_000


def test_each_kind_has_its_form() -> None:
    assert ids.is_uid(ids.new_uid()) and ids.is_uid(ids.new_run_uid(AT))
    assert uuid.UUID(ids.new_uuid()).version == 4
    ordered = ids.new_ordered_uuids(AT, 50)
    assert {uuid.UUID(one).version for one in ordered} == {7} and ordered == sorted(ordered)
    assert {uuid.UUID(one).variant for one in ordered} == {uuid.RFC_4122}
    assert all(0 < token < 2**62 for token in ids.new_tokens(1000))
    assert ids.new_run_uids(AT, 0) == [] and ids.new_tokens(0) == []


def test_a_uuid_may_carry_a_number() -> None:
    numbers = [0, 1, 0xFFF, 0x1000, 2**28, 2**53, 2**60 - 1]
    made = ids.new_numbered_uuids(numbers)
    assert [ids.number_of(one) for one in made] == numbers
    assert {(uuid.UUID(one).version, uuid.UUID(one).variant) for one in made} == {
        (8, uuid.RFC_4122)
    }
    assert ids.new_numbered_uuids([]) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "l",
        "3f2b8c1e-9d47-4c1a-8b60-5f0e2a7d9c31",
        "019b76da-abe8-7f63-a2d0-6d45a96f6d40",
        "00000000-0000-8005-9bd5-8dccdb5e13b30",
        "0000000g-0000-8005-9bd5-8dccdb5e13b3",
        "00000000-0000-7005-9bd5-8dccdb5e13b3",
    ],
)
def test_other_texts_carry_none(text: str) -> None:
    assert ids.number_of(text) is None


def test_no_two_are_the_same_whoever_asks_and_however_many() -> None:
    def draw(round_: int) -> list[object]:
        few = [ids.new_uid() for _ in range(200)]
        return [
            *few,
            *ids.new_run_uids(AT, round_ * 37 + 1),
            *ids.new_ordered_uuids(AT, 900),
            *ids.new_numbered_uuids([7] * 300),
            *ids.new_tokens(1500),
        ]

    with ThreadPoolExecutor(8) as pool:
        drawn = [one for part in pool.map(draw, range(40)) for one in part]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_does_not_repeat_what_its_parent_draws() -> None:
    ids.new_uid()  # so that something is drawn ahead
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, "".join(ids.new_uid() for _ in range(20)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reading, 4096).decode()
    os.close(reading), os.close(writing)
    theirs = {text[place : place + 32] for place in range(0, len(text), 32)}
    assert len(theirs) == 20 and theirs.isdisjoint({ids.new_uid() for _ in range(300)})
