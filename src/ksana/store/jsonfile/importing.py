"""Taking the jobs of a `jobs.json` over into a new SQL store, once (T23). The file is read and left
as it is."""

from pathlib import Path

from ksana.base.errors import SetupError
from ksana.base.ids import new_uid
from ksana.base.instant import Instant
from ksana.domain.tasks.timer_document import TimerDefaults
from ksana.ports.store import Instance
from ksana.store.jsonfile.document import Document, UnreadableError, parse_document
from ksana.store.sql.core.tx import SqlTx


def find_import(
    path: Path, now: Instant, defaults: TimerDefaults
) -> tuple[Document | None, list[str]]:
    """Read the file if there is one. A file that cannot be taken over is a warning, not a reason to
    stop."""
    try:
        document = parse_document(path.read_bytes(), now, defaults)
    except FileNotFoundError:
        return None, []
    except (OSError, UnreadableError, SetupError) as error:
        return None, [f"{path} was not taken over: {error}"]
    return document, [
        f"{path}: the job {bad.label} was not taken over: {bad.reason}" for bad in document.bad
    ]


def is_unused(tx: SqlTx) -> bool:
    """Whether nobody ever served this store. A read function."""
    return not tx.instances.list_instances() and not tx.tasks.list_tasks(limit=1)


def import_document(tx: SqlTx, document: Document, source: str) -> int | None:
    """Write the tasks under their own ids and answer how many; None if the store was used before. A
    transaction function."""
    if not is_unused(tx):
        return None
    alive_at = min(document.updated_at if document.updated_at is not None else tx.now, tx.now)
    tasks = document.list_tasks(alive_at, tx.now)
    for task in tasks:
        tx.tasks.restore(task)
        data = {
            "name": task.definition.name,
            "job_id": task.job_id,
            "dialect": task.dialect,
            "from": source,
        }
        tx.events.append("TASK", task.id, "TASK_IMPORTED", data)
    known = {key.id for key in tx.keys.list_keys()}
    for key in document.keys:
        if key.revoked_at is None and key.id not in known:
            tx.keys.insert(key.id, key.name, key.secret_hash, key.scopes)
            facts = {"name": key.name, "scopes": key.scopes, "from": source}
            tx.events.append("KEY", key.id, "KEY_CREATED", facts)
    if tasks:
        tx.instances.remember(
            Instance(new_uid(), "", "", alive_at, alive_at, alive_at, alive_at, None)
        )
    return len(tasks)
