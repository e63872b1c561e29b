"""The rules of idempotent writes over a table in memory: which requests are the same, what is kept,
and what a repeat is answered."""

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.errors import ConflictError, InvalidError
from ksana.base.instant import HOUR
from ksana.service.core.idempotency import (
    MAX_KEY,
    IdempotentRequest,
    ReplayedAnswer,
    identify,
    once_only,
)
from ksana.service.core.keys import Principal

pytestmark = pytest.mark.spec("X21")

CALLER = Principal("k1", "ops", frozenset())


class Answers:
    """`tx.idempotency` over a dict; `is_late`: another instance keeps an answer meanwhile."""

    def __init__(self, *, is_late: bool = False) -> None:
        self.rows: dict[tuple[str, str], SimpleNamespace] = {}
        self.kept_for: list[int] = []
        self._is_late = is_late

    def find_answer(self, scope: str, key_hash: str) -> SimpleNamespace | None:
        return self.rows.get((scope, key_hash))

    def remember(
        self, scope: str, key_hash: str, body_hash: str, answer: str, kept_for: int
    ) -> bool:
        if self._is_late:
            return False
        self.rows[scope, key_hash] = SimpleNamespace(body_hash=body_hash, answer=answer)
        self.kept_for.append(kept_for)
        return True


class Work:
    """A write that counts how often it was done."""

    def __init__(self, **how: Any) -> None:
        self.idempotency = Answers(**how)
        self.done: list[tuple[Any, ...]] = []

    def ask(
        self, request: IdempotentRequest | None, *args: Any, **named: Any
    ) -> tuple[Any, dict[str, Any]]:
        return once_only(self._write, request)(self, *args, **named)

    def _write(self, tx: Any, *args: Any, **named: Any) -> tuple[Any, dict[str, Any]]:
        assert tx is self
        self.done.append(args)
        return args, named


def sent(
    key: str = "key", body: bytes = b"{}", operation: str = "queue.submit", caller: Any = None
) -> IdempotentRequest:
    return identify(operation, caller, key, body, lambda result: f"made {result}".encode())


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("caller", [None, CALLER], ids=["anonymous", "with an API key"])
def test_a_request_is_named_by_operation_caller_and_hashes(caller: Principal | None) -> None:
    request = sent("key", b"body", caller=caller)
    assert request.scope == ("queue.submit:-" if caller is None else "queue.submit:k1")
    assert (request.key_hash, request.body_hash) == (digest(b"key"), digest(b"body"))
    assert request.render("x") == b"made x"


@pytest.mark.parametrize("key", ["x", "x" * MAX_KEY, " ", "~"])
def test_a_key_has_up_to_255_printable_characters(key: str) -> None:
    assert sent(key).key_hash == digest(key.encode())


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY + 1), "a\nb", "\x7f", "ключ"])
def test_what_cannot_be_a_key_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(InvalidError) as refused:
        sent(key)
    assert refused.value.message == "Idempotency-Key has 1 to 255 printable ASCII characters"
    assert refused.value.extra == {"field": "Idempotency-Key"}


def test_without_a_key_a_write_is_done_each_time_and_nothing_is_kept() -> None:
    work = Work()
    assert [work.ask(None, 1, by="x"), work.ask(None, 1)] == [((1,), {"by": "x"}), ((1,), {})]
    assert (work.done, work.idempotency.rows) == ([(1,), (1,)], {})


def test_the_first_write_is_done_and_its_answer_kept_for_a_day() -> None:
    work = Work()
    assert work.ask(sent(), 1, 2, by="x") == ((1, 2), {"by": "x"})
    [(place, kept)] = work.idempotency.rows.items()
    assert place == ("queue.submit:-", digest(b"key"))
    assert (kept.body_hash, kept.answer) == (digest(b"{}"), "made ((1, 2), {'by': 'x'})")
    assert work.idempotency.kept_for == [24 * HOUR]


def test_a_repeat_gets_the_first_answer_and_does_nothing() -> None:
    work = Work()
    work.ask(sent(), 1)
    with pytest.raises(ReplayedAnswer, match="answered before") as replayed:
        work.ask(sent(), 1)
    assert replayed.value.answer == b"made ((1,), {})"
    assert work.done == [(1,)]


@pytest.mark.parametrize(
    "other",
    [{"key": "another"}, {"operation": "tasks.create"}, {"caller": CALLER}],
    ids=["key", "operation", "caller"],
)
def test_another_key_operation_or_caller_is_another_write(other: dict[str, Any]) -> None:
    work = Work()
    work.ask(sent(), 1)
    work.ask(sent(**other), 2)
    assert work.done == [(1,), (2,)]


def test_the_key_with_another_request_is_refused_with_both_digests_in_short() -> None:
    work = Work()
    work.ask(sent(), 1)
    with pytest.raises(ConflictError) as refused:
        work.ask(sent(body=b"[]"), 2)
    assert refused.value.code == "IDEMPOTENCY_MISMATCH"
    assert refused.value.message == (
        "this Idempotency-Key was used with another request; use a new key for a new request"
    )
    assert refused.value.extra == {
        "current": {"request_digest": digest(b"{}")[:16]},
        "request_digest": digest(b"[]")[:16],
    }
    assert work.done == [(1,)]


def test_an_answer_that_another_instance_kept_meanwhile_undoes_ours() -> None:
    with pytest.raises(ConflictError) as refused:
        Work(is_late=True).ask(sent(), 1)
    assert (refused.value.code, refused.value.message) == (
        "DUPLICATE_REQUEST",
        "a request with this Idempotency-Key is under way; send it again for its answer",
    )
