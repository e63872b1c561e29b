"""What the audit says must agree with itself: a reader of its entries, in the order of their
commits, that knows what may follow what. It shares no code with what writes them.

On a store with one writer there is one chain, and its order is the order of the commits.
"""

import json
from collections import Counter
from typing import Any

from ksana.base.instant import parse_instant
from ksana.domain.governance.audit import AuditRow
from ksana.ports.store import Store

PAGE = 5000
MAX_ATTEMPTS = 3
BUILT_IN = "built-in"
RULES_OF_NO_RETURN = ("BUDGET_SPENT", "VERIFY_LIMIT")


class Ward:
    """What the feed knows of one object."""

    def __init__(self, is_high: bool, granted: int | None, is_unknowable: bool) -> None:
        self.is_high = is_high
        self.granted = granted
        """Verifications that it may have; None if nobody counts them."""
        self.is_unknowable = is_unknowable
        self.pulls = 0
        self.queued: set[str] = set()
        self.follow_up: str | None = None
        """The one among them that stands for the object's next action."""
        self.held: set[str] = set()
        self.dead: set[str] = set()
        self.next_at: int | None = None
        """When it falls due, as far as callers know; None if nobody waits for it any more."""

    def queue(self, job_id: str) -> None:
        """A job waits, again or for the first time."""
        self.queued.add(job_id)
        self.follow_up = self.follow_up or job_id

    def unqueue(self, job_id: str) -> None:
        """A job waits no more."""
        assert job_id in self.queued, f"{job_id} was not queued"
        self.queued.discard(job_id)
        if self.follow_up == job_id:
            self.follow_up = None


class AuditFeed:
    """Reads the audit and fails at the first entry that cannot be."""

    def __init__(self, wards: dict[str, Ward], verify_limit: int) -> None:
        self.wards = wards
        self.counts: Counter[str] = Counter()
        self.acked: set[str] = set()
        self.intended: dict[str, int | None] = {}
        """The next action that a worker's ack of a job asked for."""
        self.closed: set[str] = set()
        self._verify_limit = verify_limit
        self._attempts: Counter[str] = Counter()
        self._seq = 0

    async def read(self, store: Store) -> None:
        """Take in what was written since the last time. Objects are looked at in the end: a page
        may stop within a transaction."""
        touched: set[str] = set()
        while True:
            rows: list[AuditRow] = await store.read(
                lambda tx: tx.audit.list_chain(0, self._seq, 1 << 43, PAGE)
            )
            touched |= {key for row in rows if (key := self._take(row)) is not None}
            if len(rows) < PAGE:
                break
        for key in touched:
            self._check_ward(key)

    def _take(self, row: AuditRow) -> str | None:
        assert row.seq == self._seq + 1, f"entry {self._seq + 1} is missing"
        self._seq = row.seq
        self.counts[f"{row.event_type} {row.reason or ''}".strip()] += 1
        if row.event_type == "gate.change":
            self._take_gate(json.loads(row.after or "{}"))
        if row.object_id is None:
            return None
        key = f"{row.object_type}:{row.object_id}"
        ward = self.wards[key]
        take = getattr(self, "_on_" + row.event_type.replace(".", "_"), None)
        if take is not None:
            take(ward, row, json.loads(row.before or "null"), json.loads(row.after or "null"))
        return key

    def _take_gate(self, after: dict[str, Any]) -> None:
        assert after["scope"] is None
        if after["state"] == "closed":
            self.closed.add(after["gate"])
        else:
            self.closed.discard(after["gate"])

    def _check_ward(self, key: str) -> None:
        """Between transactions: an object with a next action has a job that will see to it."""
        ward = self.wards[key]
        if ward.next_at is not None:
            is_live = bool(ward.queued or ward.held or ward.dead)
            assert is_live, f"{key} is forgotten: it should fall due at {ward.next_at}"
        if ward.granted is not None:
            assert ward.pulls <= ward.granted, f"{key} was verified more often than granted"
        if ward.is_unknowable:
            assert ward.pulls <= self._verify_limit, f"{key} cannot be known and was verified again"

    # One for each type of entry

    def _on_job_enqueue(self, ward: Ward, row: AuditRow, _: Any, after: Any) -> None:
        assert row.job_id is not None
        assert ward.follow_up is None, f"{row.object_id} has two queued follow-ups"
        run_at = parse_instant(after["run_at"])
        if row.actor != BUILT_IN:  # of its own only the built-in worker knows the time
            assert run_at == ward.next_at, f"{row.object_id} falls due at another time than asked"
        ward.next_at = run_at
        ward.queue(row.job_id)

    def _on_job_move(self, ward: Ward, row: AuditRow, _: Any, after: Any) -> None:
        assert ward.follow_up == row.job_id
        if "run_at" in after:
            assert parse_instant(after["run_at"]) == ward.next_at

    def _on_job_remove(self, ward: Ward, row: AuditRow, _: Any, __: Any) -> None:
        assert row.job_id is not None
        assert ward.next_at is None
        ward.unqueue(row.job_id)

    def _on_job_pull(self, ward: Ward, row: AuditRow, _: Any, __: Any) -> None:
        assert row.job_id is not None
        assert row.job_id not in ward.held, f"{row.job_id} is handed out twice"
        assert not (ward.is_high and self.closed), f"{row.job_id} passed {self.closed}, closed"
        ward.unqueue(row.job_id)
        ward.held.add(row.job_id)
        ward.pulls += 1

    def _on_job_ack(self, ward: Ward, row: AuditRow, _: Any, __: Any) -> None:
        job_id = self._let_go(ward, row)
        assert job_id not in self.acked, f"{job_id} is acknowledged twice"
        self.acked.add(job_id)
        if row.actor == BUILT_IN:
            ward.next_at = None  # the follow-up, if there is one, says when
            return
        ward.next_at = self.intended.pop(job_id)
        if ward.is_unknowable and ward.pulls >= self._verify_limit:
            ward.next_at = None

    def _let_go(self, ward: Ward, row: AuditRow) -> str:
        assert row.job_id is not None
        assert row.job_id in ward.held, f"{row.job_id} ended and was not held"
        ward.held.discard(row.job_id)
        return row.job_id

    def _on_job_fail(self, ward: Ward, row: AuditRow, _: Any, after: Any) -> None:
        if row.reason in RULES_OF_NO_RETURN:
            assert row.job_id is not None
            if row.reason == "BUDGET_SPENT":
                assert ward.pulls == ward.granted, f"{row.object_id} had verifications left"
            ward.unqueue(row.job_id)
            ward.next_at = None
            return
        self._end_attempt(ward, row, after)

    def _on_job_expire(self, ward: Ward, row: AuditRow, before: Any, after: Any) -> None:
        assert parse_instant(before["lease_expires_at"]) <= row.timestamp
        self._end_attempt(ward, row, after)

    def _end_attempt(self, ward: Ward, row: AuditRow, after: Any) -> None:
        job_id = self._let_go(ward, row)
        attempt = self._attempts[job_id] = self._attempts[job_id] + 1
        assert after["attempt"] == attempt, f"{job_id} counts {after['attempt']} for {attempt}"
        assert (after["status"] == "dead_letter") == (attempt == MAX_ATTEMPTS)
        if after["status"] == "dead_letter":
            ward.dead.add(job_id)
        else:
            ward.queue(job_id)

    def _on_job_requeue(self, ward: Ward, row: AuditRow, _: Any, __: Any) -> None:
        assert row.job_id is not None
        assert row.job_id in ward.dead, f"{row.job_id} is queued again and was no dead letter"
        ward.dead.discard(row.job_id)
        ward.queue(row.job_id)
        del self._attempts[row.job_id]

    def _on_object_change(self, ward: Ward, _: AuditRow, before: Any, after: Any) -> None:
        if ward.granted is not None:
            ward.granted += after["auto_verify_budget"] - before["auto_verify_budget"]
        if after["next_action_at"] is not None:
            ward.next_at = parse_instant(after["next_action_at"])

    _on_object_move = _on_object_change
