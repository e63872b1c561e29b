"""What the cluster's endpoints answer, for the API's description. The handlers write these as plain
objects; tests hold what is answered against them."""

from typing import Any

import msgspec


class CoordinationShown(msgspec.Struct, frozen=True):
    """How the instances reach each other."""

    ok: bool
    reason: str | None
    durable: bool
    shared: bool
    round_trips: int
    ops: dict[str, Any]


class InstanceShown(msgspec.Struct, frozen=True):
    """One instance."""

    instance_id: str
    host: str
    version: str
    started_at: str
    nodes: int
    sessions: int


class InboxShown(msgspec.Struct, frozen=True):
    """The messages to the instance that answers."""

    length: int
    pending: int
    dead_letters: int


class ClusterShown(msgspec.Struct, frozen=True):
    """The instances, and how the one that answers fares."""

    instance_id: str
    coordination: CoordinationShown
    instances: list[InstanceShown]
    inbox: InboxShown
    counts: dict[str, Any]


class LetterReplayed(msgspec.Struct, frozen=True):
    """A dead letter is handled again."""

    replayed: bool
