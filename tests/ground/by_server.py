"""How the tests are shared out among the workers of a run, and what follows when a worker dies."""

import contextlib
from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

SERVERS = ("mariadb", "postgres", "redis", "tests/console")


class ByServer(LoadScopeScheduling):  # type: ignore[misc]
    """Give all tests that name a server to one worker, so that it starts once and not once per
    worker. Every other test is handed out by itself.

    The scheduler beneath hangs when a worker dies: it hands the dead one's finished units out
    again, as empty errands that nobody reports back from, and gives its replacement one test,
    which waits for a second before it runs. Here only what was not run is handed on, without the
    test that killed the worker, and a replacement starts with two.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((name for name in SERVERS if name in nodeid.lower()), nodeid)

    def remove_node(self, node: Any) -> str | None:
        units = self.assigned_work.pop(node)
        left = {
            scope: {test: False for test, is_done in unit.items() if not is_done}
            for scope, unit in units.items()
        }
        left = {scope: unit for scope, unit in left.items() if unit}
        if not left:
            return None
        scope, unit = next(iter(left.items()))
        crashed: str = next(iter(unit))
        del unit[crashed]
        if not unit:
            del left[scope]
        self.workqueue.update(left)
        self._hand_on()
        return crashed

    def _assign_work_unit(self, node: Any) -> None:
        # One that has died a moment ago takes nothing: its unit is handed on with its others.
        with contextlib.suppress(OSError):
            super()._assign_work_unit(node)

    def schedule(self) -> None:
        if self.collection is None:
            super().schedule()
            return
        for _ in range(2):  # a replacement starts with two; another may not have collected yet
            self._hand_on()

    def _hand_on(self) -> None:
        for node in self.nodes:
            if node in self.registered_collections:
                self._reschedule(node)
