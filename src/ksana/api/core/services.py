"""What the edges need from below, as one small protocol; boot fills it. No surface's own services
live here."""

from collections.abc import Callable
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry

from ksana.base.clock import Clock
from ksana.ports.store import Store
from ksana.service.core.events import EventLog
from ksana.service.core.keys import KeyRing

MAX_BODY = 1024 * 1024
"""Bytes of a request body (X13)."""


DEFAULT_RATE = 5000
"""Requests a second of one key or address. Left so, calls from this machine without a key are not
counted."""


class ApiSettings(msgspec.Struct, frozen=True):
    """The settings that the edges read."""

    version: str = "0"
    bind_is_loopback: bool = True
    open_without_keys: bool = True
    """Whether everything is open while no key was ever made: a loopback bind, or `--insecure`."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names besides localhost, 127.0.0.1 and [::1] that may be asked for on a loopback bind.
    """
    allowed_origins: tuple[str, ...] = ()
    """Foreign origins that browsers may call from, such as `https://ops.example.org`."""
    max_body: int = MAX_BODY
    rate: int = DEFAULT_RATE
    tzdata_version: str = "unknown"
    serves_metrics: bool = True


class Check(msgspec.Struct, frozen=True):
    """One thing that /readyz checks. `problem` is a line for the operator when it is not well."""

    name: str
    ok: bool
    problem: str | None = None


class LogControl(Protocol):
    """The log of this process, as far as it may be changed while it runs."""

    level: str
    access: bool
    """Whether each request is a line."""

    def change(self, level: str | None = None, access: bool | None = None) -> None:
        """Change what is given."""
        ...


class Services(Protocol):
    """What the foundation's own routes and the layer itself use."""

    @property
    def store(self) -> Store: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> ApiSettings: ...

    @property
    def is_open(self) -> Callable[[], bool]:
        """Whether the store was opened: before that nothing can be asked."""
        ...

    @property
    def readiness(self) -> Callable[[], list[Check]]:
        """The state of the store, the loops and the coordination, without waiting for them."""
        ...

    @property
    def metrics(self) -> CollectorRegistry: ...

    @property
    def keys(self) -> KeyRing: ...

    @property
    def events(self) -> EventLog: ...
