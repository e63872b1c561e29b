"""A cache over texts that is bounded by bytes as well as by entries: long texts pass it by."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

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
