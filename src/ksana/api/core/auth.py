"""Who may pass, and how often: host and origin first, then the key and its scope (X19), then the
rate of the caller. Knows nothing of bodies or routes' meaning."""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, Final

from ksana.api.core.connection_guard import group_address
from ksana.api.core.services import Services
from ksana.base.errors import ForbiddenError, RateLimitedError, UnauthenticatedError
from ksana.base.instant import SECOND, Micros
from ksana.service.core.keys import Principal

LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]@/,\s]+)(?::[0-9]{1,5})?", re.ASCII)
_MAX_REMEMBERED: Final = 256
"""Host headers found good are remembered; a scanner may not make us remember more than this."""


class Authenticator:
    """Checks requests by their headers."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._keys = services.keys
        self._monotonic = services.clock.monotonic
        self._open_without_keys = settings.open_without_keys
        self._any_host = not settings.bind_is_loopback
        self._hosts = LOOPBACK_HOSTS | {host.lower() for host in settings.allowed_hosts}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        self._good_hosts: set[bytes] = set()
        self._good_texts: dict[bytes, str] = {}
        """Of an Authorization header that was good once, the key in it."""

    def check_source(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a foreign Host on a loopback bind (DNS rebinding), a foreign Origin anywhere."""
        host = headers.get(b"host")
        if host is not None and not self._any_host and host not in self._good_hosts:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None:
            self._check_origin(origin, host or b"")

    async def admit(self, headers: Mapping[bytes, bytes], scope: str) -> Principal | None:
        """Find who calls and check the scope. None while auth is off. Raise 401 or 403."""
        keys = self._keys
        if self._monotonic() >= keys.fresh_until:
            await keys.follow()
        if not keys.any_made and self._open_without_keys:
            return None
        sent = headers.get(b"authorization", b"")
        text = self._good_texts.get(sent)
        if text is None:
            text = _presented(headers)
            principal = keys.recognise(text)
            if sent and len(self._good_texts) < _MAX_REMEMBERED:
                self._good_texts[sent] = text
        else:
            principal = keys.recognise(text)
        if not principal.may(scope):
            raise ForbiddenError(f"this key lacks the scope {scope}", scope=scope)
        return principal

    def _check_host(self, host: bytes) -> None:
        # Compared whole: what stands behind the name may be a port, and nothing else.
        text = host.decode("latin-1").lower()
        match = _HOST.fullmatch(text)
        if (match is None or match["name"] not in self._hosts) and text not in self._hosts:
            raise ForbiddenError(
                "this host name is not served here; allowed: " + ", ".join(sorted(self._hosts))
            )
        if len(self._good_hosts) < _MAX_REMEMBERED:
            self._good_hosts.add(host)

    def _check_origin(self, origin: bytes, host: bytes) -> None:
        text = origin.decode("latin-1").lower()
        # A proxy may end TLS before us, so the scheme of our own origin is not known here: its host
        # is.
        scheme, _, netloc = text.partition("://")
        if scheme in ("http", "https") and netloc and netloc == host.decode("latin-1").lower():
            return
        if text not in self._origins:
            raise ForbiddenError("calls from this origin are not allowed")


def _presented(headers: Mapping[bytes, bytes]) -> str:
    authorization = headers.get(b"authorization")
    if authorization is not None:
        kind, _, key = authorization.decode("latin-1").strip().partition(" ")
        if kind.lower() in ("bearer", "apikey") and key:
            return key.strip()
        raise UnauthenticatedError(
            "write Authorization: Bearer <key> or Authorization: ApiKey <key>"
        )
    key_header = headers.get(b"x-api-key")
    if key_header is None:
        raise UnauthenticatedError(
            "a key is needed: Authorization: Bearer <key>, or X-API-Key: <key>"
        )
    return key_header.decode("latin-1").strip()


BURST_SEC: Final = 2
"""A caller that was quiet may send the requests of so many seconds at once."""
MAX_CALLERS: Final = 10_000
"""Callers remembered; whoever was forgotten begins with a full bucket."""


class RateLimiter:
    """Requests a second, by key, or by address where no key is sent: a token bucket of two floats
    each. Generous by default: it is there so that one caller cannot take the event loop from the
    rest. `spares_local`: calls from this machine without a key pass."""

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
