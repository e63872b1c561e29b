"""Objects and gates in SQL."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from ksana.domain.governance.records import Gate, GovernedObject
from ksana.ports.governance.tables import ObjectFilter
from ksana.ports.pages import MAX_PAGE_BYTES, PageRows
from ksana.store.sql.core.session import Row, Session

_FIELDS: Final = GovernedObject.__struct_fields__
_INSERT: Final = ("object_key", *_FIELDS)
_FIXED: Final = ("object_type", "object_id", "created_at")
_CHANGING: Final = tuple(name for name in _FIELDS if name not in _FIXED)
_UPDATE: Final = (*_CHANGING, "object_key", "old_version", "old_status")
_pick_changing = itemgetter(*(_FIELDS.index(name) for name in _CHANGING))


class SqlObjects:
    """`governance_objects`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def find(self, object_key: str) -> GovernedObject | None:
        row = self._session.one("objects.find_object", object_key=object_key)
        return None if row is None else GovernedObject(*row)

    def read(self, object_keys: Sequence[str]) -> dict[str, GovernedObject]:
        return self._by_key("objects.read_objects", object_keys)

    def read_of_tier(self, object_keys: Sequence[str], risk_tier: str) -> dict[str, GovernedObject]:
        return self._by_key("objects.read_objects_of_tier", object_keys, risk_tier=risk_tier)

    def lock(self, object_keys: Sequence[str]) -> dict[str, GovernedObject]:
        return self._by_key("objects.lock_objects", sorted(object_keys))

    def _by_key(
        self, statement: str, keys: Sequence[str], **more: str
    ) -> dict[str, GovernedObject]:
        if not keys:
            return {}
        # Row by row: a number with a fraction read as JSON text would lose digits.
        rows = self._session.all(statement, keys=list(keys), **more)
        found = [GovernedObject(*row) for row in rows]
        return {governed.key: governed for governed in found}

    def list_page(self, wanted: ObjectFilter, after: str, limit: int) -> PageRows[GovernedObject]:
        self._session.avoid_sorts()
        name, given = (
            "objects.find_keys",
            {"floor": max(after, wanted.floor), "top": wanted.top},
        )
        if wanted.status is not None:
            name, given = "objects.find_keys_of_status", {**given, "status": wanted.status}
        found = self._session.all(name, limit=limit + 1, **given)
        keys = [row[0] for row in found[:limit]]
        rows = (
            self._session.paged("objects.list_objects", {}, MAX_PAGE_BYTES, keys=keys)
            if keys
            else PageRows()
        )
        objects = PageRows(GovernedObject(*row[1:]) for row in rows)
        objects.is_cut = rows.is_cut or len(found) > limit
        return objects

    def insert_if_new(self, objects: Sequence[GovernedObject]) -> int:
        rows = [(governed.key, *msgspec.structs.astuple(governed)) for governed in objects]
        return self._session.run_rows("objects.insert_object", _INSERT, rows)

    def update_if_unchanged(self, changes: Sequence[tuple[GovernedObject, GovernedObject]]) -> int:
        rows = [_change(old, new) for old, new in changes]
        return self._session.run_rows("objects.update_object", _UPDATE, rows)


def _change(old: GovernedObject, new: GovernedObject) -> Row:
    return (*_pick_changing(msgspec.structs.astuple(new)), new.key, old.version, old.status)


class SqlGates:
    """`governance_gates`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def list_gates(self) -> list[Gate]:
        return [Gate(*row) for row in self._session.all("governance.list_gates")]

    def lock_gates(self) -> list[Gate]:
        self._session.all("governance.lock_gates")
        return self.list_gates()

    def set_gate(self, gate: Gate) -> None:
        self._session.run(
            "governance.set_gate",
            gate=gate.gate,
            scope=gate.scope,
            state=gate.state,
            reason=gate.reason,
            updated_at=gate.updated_at,
            updated_by=gate.updated_by,
        )
