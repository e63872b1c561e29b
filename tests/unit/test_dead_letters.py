"""How errors are grouped."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.domain.dead_letters import MAX_GROUP, group_key, group_text


@pytest.mark.spec("B12")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("connection to 10.0.0.1:80 refused", "connection to 10.22.3.41:8080 refused"),
        (
            "no job 0197a3c2-8f0d-7b8e-9d55-0f6b1a2c3d4e",
            "no job 0197ffff-aaaa-7bbb-8ccc-0123456789ab",
        ),
        ("digest 9f86d081884c7d65", "digest 00000000aaaaaaaa"),
        ("the answer\n  was 500", "the answer was 503"),
        ("x" * 1025, "x" * 1024),
    ],
)
def test_errors_that_differ_in_numbers_and_ids_are_one_group(one: str, other: str) -> None:
    assert group_key(one) == group_key(other)


@pytest.mark.spec("B12")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("connection refused", "connection reset"),
        ("no table facade", "no table decade"),
        ("timeout after 10 s", "timeout after 10 ms"),
        ("bad", "Bad"),
    ],
)
def test_errors_that_differ_in_words_are_two(one: str, other: str) -> None:
    assert group_key(one) != group_key(other)


@pytest.mark.spec("B12")
@given(st.text(max_size=400))
def test_the_text_of_a_group_names_its_group(error: str) -> None:
    text = group_text(error)
    assert len(text) <= MAX_GROUP
    assert group_text(text) == text
    assert group_key(text) == group_key(error)
    assert 0 <= group_key(error) < 2**63


@pytest.mark.spec("B12")
def test_a_group_is_a_known_hash_of_its_text_so_that_every_instance_finds_the_same() -> None:
    text = group_text("job 0197a3c2-8f0d-7b8e  took 12 s")
    assert text == "job # took # s"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    assert group_key(text) == int.from_bytes(digest, "big") >> 1
