"""Answers remembered by Idempotency-Key."""

from typing import Any, Final

from ksana.base.instant import Instant, Micros
from ksana.ports.store import RememberedAnswer
from ksana.store.sql.core.session import Session

_EXPIRED_COLUMNS: Final = ("scope", "key_hash", "before")


class SqlIdempotency:
    """`idempotency_keys`. Call `find_answer` first and `remember` in the same transaction as the
    write."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def find_answer(self, scope: str, key_hash: str) -> RememberedAnswer | None:
        row = self._session.one("idempotency.find_answer", scope=scope, key_hash=key_hash)
        return None if row is None else RememberedAnswer(body_hash=row[0], answer=row[1])

    def remember(
        self, scope: str, key_hash: str, body_hash: str, answer: str, ttl_us: Micros
    ) -> bool:
        self._session.run("idempotency.drop_expired_answer", scope=scope, key_hash=key_hash)
        remembered = self._session.run(
            "idempotency.remember_answer",
            scope=scope,
            key_hash=key_hash,
            body_hash=body_hash,
            answer=answer,
            expires_at=self._now + ttl_us,
        )
        return remembered == 1

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("idempotency.list_expired_answers", before=before, limit=limit)
        expired = [(*row, before) for row in rows]
        return self._session.run_rows("idempotency.delete_answer", _EXPIRED_COLUMNS, expired)
