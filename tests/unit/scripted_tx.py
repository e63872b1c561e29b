"""A transaction without rows: it answers what the test says and writes down what it was told, in
order. For what is written where; that the statements do it is proven on every database."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ksana.base.instant import Instant
from tests.unit.task_ground import NOW


class Told(NamedTuple):
    """One thing that a transaction was told or asked."""

    what: str
    """The table and the verb, as `runs.find`."""
    args: tuple[Any, ...]
    members: dict[str, Any]


class _Table:
    def __init__(self, tx: "ScriptedTx", name: str) -> None:
        self._tx = tx
        self._name = name

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def tell(*args: Any, **members: Any) -> Any:
            return self._tx.hear(f"{self._name}.{verb}", args, members)

        return tell


class ScriptedTx:
    """Any `…Tx` of the ports. What nobody scripted an answer for is answered None."""

    def __init__(self, now: Instant = NOW, **answers: Any) -> None:
        """Answers by table and verb: `runs_find=…` is `runs.find`, given once; a function is asked
        each time."""
        self.now = now
        self.told: list[Told] = []
        self._answers = answers

    def __getattr__(self, table: str) -> _Table:
        return _Table(self, table)

    def hear(self, what: str, args: tuple[Any, ...], members: dict[str, Any]) -> Any:
        self.told.append(Told(what, args, members))
        found = self._answers.get(what.replace(".", "_"))
        return found(*args, **members) if callable(found) else found

    def args_of(self, what: str) -> list[tuple[Any, ...]]:
        """With what it was told something, each time."""
        return [told.args for told in self.told if told.what == what]

    def verbs(self) -> list[str]:
        """All that it was told, by name."""
        return [told.what for told in self.told]
