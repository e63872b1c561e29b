"""The core's own tables: instances, locks and API keys."""

from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.ports.clock_steps import ClockStep
from ksana.ports.store import ApiKey, Instance
from ksana.store.sql.core.session import Row, Session


class SqlInstances:
    """Who runs, and the outages in which nobody did."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def register(
        self,
        instance_id: str,
        host: str,
        version: str,
        lease_us: int,
        sole: bool,
        dead: tuple[str, ...] = (),
    ) -> Instance:
        for gone in dead:
            self._session.run("core.end_instance", id=gone)
        last = self._session.one("core.last_sign_of_life")
        outage_from: Instant | None = None
        if last is not None and last[0] is not None:
            alive_at, lease_until = int(last[0]), int(last[1] or 0)
            if sole or lease_until <= self._now:
                outage_from = min(alive_at, self._now)
        if sole:
            self._session.run("core.end_other_instances", id=instance_id)
        instance = Instance(
            instance_id,
            host,
            version,
            self._now,
            self._now,
            self._now + lease_us,
            None,
            outage_from,
        )
        self._session.run("core.insert_instance", **msgspec.structs.asdict(instance))
        return instance

    def remember(self, instance: Instance) -> None:
        """Enter an instance that is known from elsewhere, such as the last life of a JSON file."""
        self._session.run("core.insert_instance", **msgspec.structs.asdict(instance))

    def renew_if_registered(
        self, instance_id: str, lease_us: int, is_draining: bool = False
    ) -> bool:
        statement = "core.renew_draining" if is_draining else "core.renew_instance"
        return self._session.run(statement, id=instance_id, lease_us=lease_us) == 1

    def note_begun(self, instance_id: str, run_id: int) -> None:
        self._session.run_later("core.note_begun", id=instance_id, run_id=run_id)

    def find_begun_to(self, instance_id: str) -> int | None:
        row = self._session.one("core.begun_to", id=instance_id)
        return None if row is None else row[0]

    def stop(self, instance_id: str) -> None:
        self._session.run("core.stop_instance", id=instance_id)

    def list_instances(self) -> list[Instance]:
        return [Instance(*row) for row in self._session.all("core.list_instances")]

    def list_outages(self, since: Instant) -> list[tuple[Instant, Instant]]:
        return [(row[0], row[1]) for row in self._session.all("core.list_outages", since=since)]

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("core.list_old_instances", before=before, limit=limit)
        old = [(row[0], before) for row in rows]
        return self._session.run_rows("core.delete_instance", ("id", "before"), old)


class SqlLocks:
    """Named leases for chores."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def take(self, name: str, owner: str, ttl_us: int) -> bool:
        if self._session.run("core.extend_lock", lock_name=name, owner_id=owner, ttl_us=ttl_us):
            return True
        return (
            self._session.run("core.enter_lock", lock_name=name, owner_id=owner, ttl_us=ttl_us) == 1
        )

    def drop(self, name: str, owner: str) -> None:
        self._session.run("core.drop_lock", lock_name=name, owner_id=owner)


class SqlMarks:
    """The writers' commit marks. The commit queue writes and reads them; here they are only
    removed."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("core.list_old_marks", before=before, limit=limit)
        old = [(row[0], before) for row in rows]
        return self._session.run_rows("core.delete_mark", ("writer", "before"), old)


class SqlClockSteps:
    """Steps of the store's clock."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def add(self, step: ClockStep) -> None:
        row = {**msgspec.structs.asdict(step), "is_back": int(step.is_back)}
        self._session.run("core.insert_clock_step", **row)

    def list_beyond(self, at: Instant) -> list[ClockStep]:
        rows = self._session.all("core.list_clock_steps", at=at)
        return [ClockStep(bool(row[0]), *row[1:]) for row in rows]

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("core.list_old_clock_steps", before=before, limit=limit)
        return self._session.run_rows("core.delete_clock_step", ("id",), rows)


class SqlKeys:
    """API keys."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def insert(self, key_id: str, name: str, secret_hash: str, scopes: tuple[str, ...]) -> ApiKey:
        self._session.run(
            "core.insert_key",
            id=key_id,
            name=name,
            secret_hash=secret_hash,
            scopes=" ".join(scopes),
            at=self._now,
        )
        return ApiKey(key_id, name, secret_hash, scopes, self._now, None, None)

    def list_keys(self) -> list[ApiKey]:
        return [_key(row) for row in self._session.all("core.list_keys")]

    def revoke_if_live(self, key_id: str) -> bool:
        return self._session.run("core.revoke_key", id=key_id) == 1

    def touch(self, key_id: str) -> None:
        self._session.run("core.touch_key", id=key_id)


def _key(row: Row) -> ApiKey:
    return ApiKey(row[0], row[1], row[2], tuple(row[3].split()), row[4], row[5], row[6])


class SqlFacts:
    """What belongs to the store as a whole."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def find_or_note(self, name: str, value: str) -> str:
        row = self._session.one("core.get_fact", name=name)
        if row is None:
            self._session.run("core.insert_fact", name=name, value=value)
            row = self._session.one("core.get_fact", name=name)
        assert row is not None
        return str(row[0])

    def find(self, name: str) -> str | None:
        row = self._session.one("core.get_fact", name=name)
        return None if row is None else str(row[0])

    def note(self, name: str, value: str) -> None:
        self._session.run("core.note_fact", name=name, value=value)
