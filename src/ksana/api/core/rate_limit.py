"""Requests a second, by key, or by address where no key is sent: a token bucket of two floats each.

Generous by default: it is there so that one caller cannot take the event loop from the rest.
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

from ksana.api.core.connection_guard import group_address
from ksana.base.errors import RateLimitedError
from ksana.base.instant import SECOND, Micros
from ksana.service.core.keys import Principal

BURST_SEC: Final = 2
"""A caller that was quiet may send the requests of so many seconds at once."""
MAX_CALLERS: Final = 10_000
"""Callers remembered; whoever was forgotten begins with a full bucket."""


class RateLimiter:
    """The buckets of one server. `spares_local`: calls from this machine without a key pass."""

    def __init__(
        self, rate: int, monotonic: Callable[[], Micros], *, spares_local: bool = False
    ) -> None:
        self._per_us = rate / SECOND
        self._full = float(max(1, rate * BURST_SEC))
        self._monotonic = monotonic
        self._spares_local = spares_local
        self._buckets: dict[str, list[float]] = {}
        self._local: dict[str, bool] = {}

    def take(self, principal: Principal | None, peer: Any) -> None:
        """Count one request. Raise RateLimitedError if the caller has none left."""
        if principal is not None:
            caller = principal.key_id
        else:
            host = peer[0] if peer else ""
            if self._spares_local:
                is_local = self._local.get(host)
                if is_local or (is_local is None and self._is_local(host)):
                    return
            caller = group_address(host)
        now = self._monotonic()
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= MAX_CALLERS:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[caller] = [self._full - 1.0, now]
            return
        left = min(self._full, bucket[0] + (now - bucket[1]) * self._per_us)
        bucket[1] = now
        if left < 1.0:
            bucket[0] = left
            wait_sec = int((1.0 - left) / self._per_us / SECOND) + 1
            raise RateLimitedError("too many requests: see limits.rate", retry_after_sec=wait_sec)
        bucket[0] = left - 1.0

    def _is_local(self, host: str) -> bool:
        try:
            is_local = ip_address(host).is_loopback
        except ValueError:
            is_local = not host  # a Unix socket has no address
        if len(self._local) < MAX_CALLERS:
            self._local[host] = is_local
        return is_local
