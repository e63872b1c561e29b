"""Handlers of objects, gates, the audit and figures."""

from typing import Any

from ksana.api.core.reading import find_instant
from ksana.api.core.routing import Answer, Call
from ksana.api.governance.reading import (
    read_audit_cursor,
    read_fields,
    read_object_cursor,
    read_verify_cursor,
    read_who,
    show_verify_cursor,
)
from ksana.api.governance.shapes import AuditQuery, GateBody, ObjectBody, ObjectsQuery, VerifyQuery
from ksana.api.governance.views import (
    AuditView,
    GateView,
    ObjectView,
    show_audit,
    show_gate,
    show_object,
)
from ksana.domain.governance.audit import entry_id
from ksana.domain.governance.gates import check_scope
from ksana.ports.governance.tables import AuditFilter, ObjectFilter
from ksana.service.governance.audit import AuditService
from ksana.service.governance.explain import GovernanceExplainer
from ksana.service.governance.figures import GovernanceStats
from ksana.service.governance.service import GovernanceService


class ObjectEndpoints:
    """`/scheduler/objects` and `/scheduler/gates`."""

    def __init__(self, service: GovernanceService, explainer: GovernanceExplainer) -> None:
        self._service = service
        self._explainer = explainer

    async def put(self, call: Call, body: ObjectBody) -> Answer:
        """Register an object, or put another in its place."""
        object_type, object_id = call.params["object_type"], call.params["object_id"]
        governed, is_new = await self._service.put_object(
            object_type, object_id, read_fields(body), read_who(call)
        )
        return Answer(201 if is_new else 200, show_object(governed))

    async def patch(self, call: Call, body: ObjectBody) -> ObjectView:
        """Change what is given."""
        object_type, object_id = call.params["object_type"], call.params["object_id"]
        return show_object(
            await self._service.patch_object(
                object_type, object_id, read_fields(body), read_who(call)
            )
        )

    async def get(self, call: Call) -> ObjectView:
        """One object."""
        object_type, object_id = call.params["object_type"], call.params["object_id"]
        return show_object(await self._service.get_object(object_type, object_id))

    async def list(self, call: Call) -> Any:
        """Some objects, by type and id."""
        query: ObjectsQuery = call.query
        wanted = ObjectFilter(
            object_type=query.object_type, status=query.status, id_prefix=query.id_prefix
        )
        page = await self._service.list_objects(
            wanted, read_object_cursor(query.cursor), query.limit
        )
        return {
            "objects": [show_object(governed) for governed in page],
            "next_cursor": page[-1].key if page.is_cut else None,
        }

    async def explain(self, call: Call) -> Any:
        """What comes next for an object, and what its jobs came to."""
        object_type, object_id = call.params["object_type"], call.params["object_id"]
        explained = await self._explainer.explain_object(object_type, object_id)
        return {
            "object_type": object_type,
            "object_id": object_id,
            "summary": explained.summary,
            "reasons": explained.reasons,
        }

    async def list_gates(self, _: Call) -> Any:
        """Every setting of every gate."""
        return {"gates": [show_gate(gate) for gate in await self._service.list_gates()]}

    async def set_gate(self, call: Call, body: GateBody) -> GateView:
        """Set a gate."""
        scope = check_scope(body.scope)
        setting, woken = await self._service.set_gate(
            call.params["gate"], scope, body.state, body.reason, read_who(call)
        )
        return show_gate(setting, woken)


class AuditEndpoints:
    """`/scheduler/audit` and `/scheduler/metrics`."""

    def __init__(self, audit: AuditService, stats: GovernanceStats) -> None:
        self._audit = audit
        self._stats = stats

    async def list(self, call: Call) -> Any:
        """Some entries, newest first."""
        query: AuditQuery = call.query
        wanted = AuditFilter(
            event_type=query.event_type,
            actor=query.actor,
            object_type=query.object_type,
            object_id=query.object_id,
            job_id=query.job_id,
            since=find_instant("since", query.since),
            until=find_instant("until", query.until),
        )
        page = await self._audit.list_entries(wanted, read_audit_cursor(query.cursor), query.limit)
        cursor = None
        if page.next_before is not None:
            at, chain, seq = page.next_before
            cursor = f"{at}.{entry_id(chain, seq)}"
        return {"events": [show_audit(row) for row in page.entries], "next_cursor": cursor}

    async def verify(self, call: Call) -> Any:
        """The next portion of a verification."""
        query: VerifyQuery = call.query
        portion = await self._audit.portions.verify(read_verify_cursor(query.cursor))
        return {
            "ok": not portion.findings,
            "checked": portion.entries,
            "anchors": portion.anchors,
            "restarted": portion.is_restart,
            "next_cursor": None if portion.next is None else show_verify_cursor(portion.next),
            "first_fault": portion.findings[0] if portion.findings else None,
        }

    async def get(self, call: Call) -> AuditView:
        """One entry."""
        return show_audit(await self._audit.get_entry(call.params["entry_id"]))

    async def metrics(self, _: Call) -> Any:
        """What waits, and how the last hour went."""
        return await self._stats.read()
