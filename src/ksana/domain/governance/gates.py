"""Gates: what the persona and the cognition allow at the moment (G9). Pure.

A gate has one setting for everything and may have more for a scope: an object type (`memory`), a
type and an action (`memory:verify`), or an action on any type (`*:verify`). Where several settings
of a gate fit a job the strictest counts, so that opening a part never opens what is closed as a
whole.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ksana.base.errors import InvalidError
from ksana.domain.governance.records import (
    ACTIONS,
    GATES,
    OBJECT_TYPES,
    Gate,
    GovernedObject,
)

EVERYTHING: Final = ""
_STRICTNESS: Final = {"open": 0, "degraded": 1, "closed": 2}
_SCOPES: Final = frozenset(
    {
        EVERYTHING,
        *OBJECT_TYPES,
        *(f"{kind}:{action}" for kind in (*OBJECT_TYPES, "*") for action in ACTIONS),
    }
)

GATED_TIER: Final = "high"
"""The gates have a say about objects of this tier of risk."""
LONG_DEFERRED: Final = 10
"""Deferrals after which a job that still waits raises an alert."""


class GateVerdict(msgspec.Struct, frozen=True, gc=False):
    """What the gates say about one job."""

    closed_by: Gate | None
    """The setting that keeps it; None if it may be handed out."""
    states: dict[str, str]
    """Each gate's state for this job."""

    @property
    def is_degraded(self) -> bool:
        """Whether it is handed out with a warning."""
        return self.closed_by is None and "degraded" in self.states.values()


ALL_OPEN: Final = GateVerdict(None, dict.fromkeys(GATES, "open"))


def check_scope(scope: str | None) -> str:
    """A scope as it is kept. Raise InvalidError for one that fits nothing."""
    checked = scope or EVERYTHING
    if checked not in _SCOPES:
        raise InvalidError(
            f"'scope': {checked[:64]!r} is not a scope; allowed: null for everything, an object"
            f" type ({', '.join(OBJECT_TYPES)}), type:action or *:action"
            f" (actions: {', '.join(ACTIONS)})",
            field="scope",
        )
    return checked


def covers(scope: str, object_type: str, action: str) -> bool:
    """Whether a scope fits an action on an object."""
    return scope in (EVERYTHING, object_type, f"{object_type}:{action}", f"*:{action}")


def is_gated(governed: GovernedObject | None) -> bool:
    """Whether the gates have a say about an object's jobs. An object nobody registered is of low
    risk."""
    return governed is not None and governed.risk_tier == GATED_TIER


def read_gates(settings: Iterable[Gate], object_type: str, action: str) -> GateVerdict:
    """What the gates say about an action on an object of high risk."""
    states: dict[str, str] = dict.fromkeys(GATES, "open")
    closed_by: Gate | None = None
    for setting in settings:
        if not covers(setting.scope, object_type, action):
            continue
        if _STRICTNESS[setting.state] > _STRICTNESS[states[setting.gate]]:
            states[setting.gate] = setting.state
        if setting.state == "closed" and closed_by is None:
            closed_by = setting
    return GateVerdict(closed_by, states)


def list_opened(settings: Sequence[Gate]) -> list[str]:
    """The keys of settings that keep nobody: what waited for them is to be looked at again."""
    return [setting.key for setting in settings if setting.state != "closed"]
