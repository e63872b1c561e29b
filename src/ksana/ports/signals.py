"""Signals: small names told to all instances. A hint only: one may be lost, doubled or late, and
nothing may depend on it. The poll of whoever hears them is the net."""

from collections.abc import Callable
from typing import Final, Protocol


class Signals(Protocol):
    """`queue.ready`, `tasks.due`, `governance.gate`, `keys.changed`, each with a detail if there is
    something to say."""

    @property
    def is_live(self) -> bool:
        """Whether other instances can be heard right now. Told without asking anybody."""
        ...

    def subscribe(self, name: str, hear: Callable[[str], None]) -> Callable[[], None]:
        """Be called, on the event loop, with the detail of every signal of that name from other
        instances. Answers a function that ends it. `hear` must not block or raise."""
        ...

    def publish(self, name: str, detail: str = "") -> None:
        """Tell the others, soon. Never waits and never raises; what cannot be sent is dropped."""
        ...

    async def flush(self) -> None:
        """Wait until what was published is sent or dropped, a few seconds at most: for who ends
        right after."""
        ...


class NoSignals:
    """Where nobody else can be told anything."""

    is_live = False

    def subscribe(self, name: str, hear: Callable[[str], None]) -> Callable[[], None]:
        """Nothing is ever heard."""
        return lambda: None

    def publish(self, name: str, detail: str = "") -> None:
        """Nobody listens."""

    async def flush(self) -> None:
        """Nothing is under way."""


NO_SIGNALS: Final = NoSignals()
