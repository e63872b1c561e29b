"""What commits recorded becomes lines of the log, and only where somebody would read them."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ksana.base import log
from ksana.base.clock import VirtualClock
from ksana.boot.commit_watch import CommitWatch
from ksana.boot.logs import start_logging
from ksana.domain.tasks.events import KINDS
from ksana.ports.store import CommitListener, Committed

pytestmark = pytest.mark.spec("X16")

SKIPPED = (0, "RUN", "7", "RUN_SKIPPED", '{"task_id":3,"reason":"QUEUE_FULL"}')


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Logging set up on a buffer, and taken down again."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    output = log.current()
    yield io.StringIO()
    log.redirect(output)
    root.handlers = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.NOTSET)


class Store:
    """Remembers its listener."""

    def watch_commits(self, listener: CommitListener, types: frozenset[str]) -> None:
        assert "RUN_SKIPPED" in types
        self.tell = listener


async def test_an_event_that_nobody_would_read_is_not_made_a_line(lines: io.StringIO) -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    switch = start_logging("warning", "json", VirtualClock(), lines)
    store: Any = Store()
    CommitWatch().start(store, KINDS)
    store.tell(Committed({}, [(*SKIPPED[:4], "whoever decodes this fails")]))
    await asyncio.sleep(0)
    assert (errors, lines.getvalue()) == ([], "")
    switch.change(level="info")
    store.tell(Committed({}, [SKIPPED]))
    await asyncio.sleep(0)
    line = json.loads(lines.getvalue())
    assert (line["run_id"], line["reason"]) == (7, "QUEUE_FULL")
