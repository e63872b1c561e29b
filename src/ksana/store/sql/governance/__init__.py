"""Governance in SQL: jobs, objects, gates, the audit."""

from ksana.store.sql.governance.audit import SqlAuditLog
from ksana.store.sql.governance.due import SqlGovernanceDue
from ksana.store.sql.governance.figures import SqlGovernanceFigures
from ksana.store.sql.governance.jobs import SqlGovernanceJobs
from ksana.store.sql.governance.objects import SqlGates, SqlObjects

TABLES = {
    "governance": SqlGovernanceJobs,
    "governance_due": SqlGovernanceDue,
    "governance_figures": SqlGovernanceFigures,
    "objects": SqlObjects,
    "gates": SqlGates,
    "audit": SqlAuditLog,
}
