"""The JSON file as tests open, read and edit it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.tasks.records import Task
from ksana.service.tasks.definitions import NewTask
from ksana.store.jsonfile import JsonStore
from tests.store.timers import task_service, timer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.json"


def document(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes()))


def jobs_of(path: Path) -> list[dict[str, Any]]:
    return list(document(path)["jobs"])


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the file by hand."""
    whole = document(path)
    change(whole)
    path.write_text(json.dumps(whole, indent=2))


def all_tasks(tx: Any) -> list[Task]:
    return list(tx.tasks.list_tasks())


async def create(store: JsonStore, dialect: Any = "T", clock: Any = None, **members: Any) -> Task:
    clock = clock or SystemClock()
    return await task_service(store, clock).create(NewTask(dialect, timer(clock.now(), **members)))
