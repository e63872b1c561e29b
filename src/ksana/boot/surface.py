"""What a surface brings to the server, as one frozen value. They are found in `surfaces`.

A surface is made before the store answers: it may keep references, it must not wait for anything.
Its loops start once the store is open.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from random import Random
from typing import Any

import msgspec

from ksana.api.core.docs import FindWords
from ksana.api.core.routing import AnyRoute
from ksana.api.core.services import ApiSettings, Check
from ksana.base.clock import Clock
from ksana.boot.commit_watch import CommitWatch
from ksana.boot.descriptors import DescriptorPlan
from ksana.boot.metrics import Metrics
from ksana.boot.settings.table import Settings
from ksana.boot.tracing import Spans
from ksana.domain.events import EventKind
from ksana.engine.core.long_poll import LongPoll
from ksana.engine.core.membership import Membership
from ksana.engine.core.retention import Retention
from ksana.engine.core.signal_relay import SignalRelay
from ksana.engine.core.supervisor import Loop
from ksana.ports.secrets import SecretBox
from ksana.ports.signals import NO_SIGNALS
from ksana.ports.store import Store
from ksana.service.core.dead_letters import DeadLetterService
from ksana.service.core.events import EventLog
from ksana.service.core.keys import KeyRing


class CoreServices(msgspec.Struct, frozen=True):
    """What every surface is given to build on."""

    settings: Settings
    api_settings: ApiSettings
    clock: Clock
    random: Random
    store: Store
    metrics: Metrics
    commits: CommitWatch
    """What was committed here, counted."""
    membership: Membership
    retention: Retention
    """Add what grows old; its loop is the core's."""
    events: EventLog
    dead_letters: DeadLetterService
    """Add what can fail for good."""
    keys: KeyRing
    descriptors: DescriptorPlan
    secrets: SecretBox
    """Seals what lies in the store and nobody may read there."""
    spans: Spans | None = None
    """If somebody traces."""
    offers: dict[str, Any] = {}
    """What a surface offers to those before it, by name; see `ports.handover`. Surfaces are made
    last first."""

    @property
    def signals(self) -> SignalRelay:
        """The way to the other instances, if a surface brings one; else it leads nowhere."""
        relay: SignalRelay = self.offers.get("signals") or SignalRelay(
            NO_SIGNALS, self.clock, is_shared=False
        )
        return relay


class Surface(msgspec.Struct, frozen=True):
    """One surface: its routes, its loops, and how it answers the questions of start, probes and
    shutdown."""

    name: str
    routes: tuple[AnyRoute, ...] = ()
    events: tuple[EventKind, ...] = ()
    """The events it records."""
    words: FindWords = dict
    """What the API's description says of its members."""
    loops: tuple[Loop, ...] = ()
    """Started in this order once the store is open, stopped in the reverse order."""
    found: Callable[[Any], dict[str, int]] | None = None
    """A read function: what lies in the store, by name, for the lines printed at the start. Must
    not scan history."""
    seals: Callable[[Any], list[str]] | None = None
    """A read function: the keys by which its secrets in the store are sealed."""
    readiness: Callable[[], list[Check]] | None = None
    """Checks of its own for /readyz, beside its loops. Must not wait."""
    stats: Callable[[], Awaitable[Any]] | None = None
    """Its section of /api/v1/stats."""
    drain: Callable[[], Awaitable[None]] | None = None
    """Stop taking work at once, then wait for what runs. Cancelled when the grace is over; what is
    left then is for the orphan rule."""


def words_of(surface: str) -> FindWords:
    """The table in `api/<surface>/words.py`; only who asks for it loads it."""

    def find_words() -> Mapping[str, Any]:
        words: Mapping[str, Any] = import_module(f"ksana.api.{surface}.words").WORDS
        return words

    return find_words


def listen(signals: SignalRelay, name: str, poll: LongPoll[Any]) -> None:
    """Have those who wait here woken by what comes on other instances, and the other way round."""
    poll.tell = lambda: signals.tell(name)
    poll.is_told = lambda: signals.is_live
    signals.subscribe(name, poll.hear)
