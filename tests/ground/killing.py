"""Death between two statements: the process ends before the n-th statement from now on, or right
after a COMMIT whose answer nobody gets. For a store whose writer runs inline."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ksana.store.sql.core.session import Session

STATEMENTS = ("run", "insert", "run_rows", "run_each", "one", "all", "all_as", "raw")


class Killed(BaseException):
    """The process ends here, as far as the database can tell."""


class Killer:
    """Ends the process at a step that is chosen beforehand. A step lies before each statement, and
    one after each COMMIT."""

    def __init__(self) -> None:
        self.left: int | None = None
        """Steps until the end; None if it is not to come."""
        self.after_commit = False
        """End right after the next COMMIT instead."""

    def step(self) -> None:
        """Go on, or end here."""
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise Killed
        self.left -= 1

    def step_after_commit(self) -> None:
        """The same where the database has the transaction for good."""
        if self.after_commit:
            self.after_commit = False
            raise Killed
        self.step()


@contextmanager
def killing() -> Iterator[Killer]:
    """A killer that every session of every store asks."""
    killer = Killer()
    with pytest.MonkeyPatch.context() as patch:
        for name in STATEMENTS:
            patch.setattr(Session, name, _stepped(killer, getattr(Session, name)))
        yield killer


def _stepped(killer: Killer, original: Any) -> Any:
    def stepped(self: Any, *args: Any, **more: Any) -> Any:
        try:
            killer.step()
            result = original(self, *args, **more)
            if args == ("COMMIT",):
                killer.step_after_commit()
        except Killed:
            # A connection that is closed with a statement half read keeps its locks until Python
            # forgets the cursor; those of a dead process are gone at once.
            self._cursor.close()
            raise
        return result

    return stepped
