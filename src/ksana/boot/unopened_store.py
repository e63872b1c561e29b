"""A store that may still be away: everything is built on it at once, and it comes alive when the
real one is attached.

Until then every call raises StoreDownError, so the API answers 503 and the probes say what is
missing.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from ksana.base.errors import StoreDownError
from ksana.ports.store import CommitListener, Receiver, Store, StoreHealth

P = ParamSpec("P")
T = TypeVar("T")


class UnopenedStore:
    """Stands in for the store until `attach`, and passes every call on afterwards."""

    def __init__(self, shown_url: str) -> None:
        self._url = shown_url
        self._real: Store | None = None
        self._watch: tuple[CommitListener, frozenset[str]] | None = None
        self.problem = "the store is not open yet"
        self.sole = False

    def attach(self, real: Store) -> None:
        """Let calls through from now on."""
        self._real = real
        self.sole = real.sole
        # Bound on the instance, so that the hot path does not pass through an extra coroutine per
        # call.
        self.transact = real.transact  # type: ignore[method-assign, assignment]
        self.transact_for = real.transact_for  # type: ignore[method-assign]
        self.read = real.read  # type: ignore[method-assign, assignment]
        self.read_list = real.read_list  # type: ignore[method-assign, assignment]
        self.health = real.health  # type: ignore[method-assign]
        if self._watch is not None:
            real.watch_commits(*self._watch)

    @property
    def is_open(self) -> bool:
        """Whether the real store was attached."""
        return self._real is not None

    @property
    def url(self) -> str:
        return self._url if self._real is None else self._real.url

    async def transact(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        raise StoreDownError(self.problem)

    def transact_for(
        self,
        receiver: Receiver[T],
        fn: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Told at once that it is away."""
        receiver.set_exception(StoreDownError(self.problem))

    async def read(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        raise StoreDownError(self.problem)

    async def read_list(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        raise StoreDownError(self.problem)

    def health(self) -> StoreHealth:
        return StoreHealth(False, self.problem, 0, 0, 0)

    def watch_commits(self, listener: CommitListener, event_types: frozenset[str]) -> None:
        """Pass it on, now or when the store is open."""
        if self._real is None:
            self._watch = listener, event_types
        else:
            self._real.watch_commits(listener, event_types)

    async def close(self) -> None:
        if self._real is not None:
            await self._real.close()
