"""Nesting of a body, against an automaton that looks at one byte after the other."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ksana.api.core.body import MAX_DEPTH, check_depth
from ksana.base.errors import InvalidError

BYTES = st.lists(st.sampled_from(b'""[]{}a,\\'), max_size=40).map(bytes)
NO_BACKSLASH = st.lists(st.sampled_from(b'""[]{}a,'), max_size=40).map(bytes)
TEXTS = st.text(alphabet='[]{}",\\a', max_size=4)
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def find_depth(body: bytes) -> int:
    """The deepest level of brackets outside of strings."""
    depth = deepest = 0
    is_in_string = is_escaped = False
    for byte in body:
        if is_in_string:
            if is_escaped or byte == ord("\\"):
                is_escaped = not is_escaped
            elif byte == ord('"'):
                is_in_string = False
        elif byte == ord('"'):
            is_in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def is_refused(body: bytes) -> bool:
    try:
        check_depth(body)
    except InvalidError:
        return True
    return False


@given(VALUES, st.integers(MAX_DEPTH - 8, MAX_DEPTH + 1))
@example("[", MAX_DEPTH)
@example(["", "[", ""], MAX_DEPTH - 1)
@example(["", "]", "["], MAX_DEPTH)
@example(['"[', []], MAX_DEPTH - 1)
def test_json_is_refused_exactly_when_it_lies_too_deep(value: Any, above: int) -> None:
    body = b"[" * above + json.dumps(value).encode() + b"]" * above
    assert is_refused(body) == (find_depth(body) > MAX_DEPTH)


@given(st.one_of(BYTES, NO_BACKSLASH), st.integers(MAX_DEPTH - 6, MAX_DEPTH + 2))
@example(b'","[","["', MAX_DEPTH)
def test_what_lies_too_deep_is_refused_although_it_is_no_json(text: bytes, above: int) -> None:
    body = b"[" * above + text
    assert is_refused(body) or find_depth(body) <= MAX_DEPTH
