"""Caches that are bounded by bytes as well as by entries: over texts, where long ones pass it by,
and over what is made of them, by its weight."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


def cache_short(maxsize: int, longest: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Cache a function of one text for texts of up to `longest` characters: no caller can make it
    hold more than their product."""

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = lru_cache(maxsize=maxsize)(function)

        @wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= longest else function(text)

        return call

    return decorate


class WeighedCache(Generic[K, T]):
    """Values by their keys, up to so many and so many bytes: the oldest go first. A value that
    would take more than a hundredth of the bytes is not kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: dict[K, tuple[T, int]] = {}
        self.weight = 0
        """Bytes of all that is kept, as they were told."""

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: K) -> T | None:
        """The value, if it is kept."""
        held = self._held.get(key)
        return None if held is None else held[0]

    def add(self, key: K, value: T, weight: int) -> None:
        """Keep a value whose key is not kept yet, of so many bytes with its key."""
        if weight * 100 > self._most_bytes:
            return
        self._held[key] = (value, weight)
        self.weight += weight
        while self.weight > self._most_bytes or len(self._held) > self._most:
            oldest = next(iter(self._held))
            self.weight -= self._held.pop(oldest)[1]
