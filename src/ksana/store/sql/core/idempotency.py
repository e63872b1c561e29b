"""Answers remembered by Idempotency-Key: the first answer again for a day, whoever sends the same
request."""

import hashlib
from typing import Any

from ksana.base.errors import ConflictError
from ksana.base.instant import Instant, Micros
from ksana.store.sql.core.session import Session


class SqlIdempotency:
    """`idempotency_keys`. Call `find_answer` first and `remember` in the same transaction as the
    write."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def find_answer(self, scope: str, key: str, body: bytes) -> str | None:
        """The remembered answer. Raise 409 IDEMPOTENCY_MISMATCH when the key came with another
        body."""
        row = self._session.one(
            "idempotency.find_answer", scope=scope, key_hash=_hash(key.encode())
        )
        if row is None:
            return None
        if row[0] != _hash(body):
            raise ConflictError(
                "this Idempotency-Key was used with another body; use a new key for a new request",
                code="IDEMPOTENCY_MISMATCH",
            )
        return str(row[1])

    def remember(self, scope: str, key: str, body: bytes, answer: str, ttl_us: Micros) -> bool:
        """Keep an answer. False when another transaction used the key meanwhile: read it and undo
        the write."""
        key_hash = _hash(key.encode())
        self._session.run("idempotency.drop_expired_answer", scope=scope, key_hash=key_hash)
        return (
            self._session.run(
                "idempotency.remember_answer",
                scope=scope,
                key_hash=key_hash,
                body_hash=_hash(body),
                answer=answer,
                expires_at=self._now + ttl_us,
            )
            == 1
        )

    def purge(self, before: Instant, limit: int) -> int:
        """Forget up to `limit` answers that expired before; answer how many."""
        rows = self._session.all("idempotency.list_expired_answers", before=before, limit=limit)
        for scope, key_hash in rows:
            self._session.run(
                "idempotency.delete_answer", scope=scope, key_hash=key_hash, before=before
            )
        return len(rows)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
