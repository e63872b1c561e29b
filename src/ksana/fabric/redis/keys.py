"""Every Redis key there is. Nothing else in the program spells one.

A part in braces is the hash tag: keys with the same tag lie in one slot of a Cluster, and a script
may touch only keys of one slot.

    schedulers:presence:<instance>                 string, TTL   an instance lives
    nodes:owner:{node:<id>}                        string, TTL   who holds the node's socket
    sessions:owner:{session:<id>}                  string, TTL   who holds the session's socket
    streams:{instance:<id>}:inbox                  stream        messages to an instance
    streams:{instance:<id>}:dlq                    stream        its dead letters
    streams:{instance:<id>}:drainer                string, TTL   who drains a dead instance's inbox
    v1:schedulers:all                              zset          instances by when last seen
    v1:nodes:all                                   set           node ids
    v1:nodes:last_seen                             zset          node ids by when they were written
    v1:nodes:presence:<node>                       string, TTL   a node lives
    v1:nodes:snapshot:<node>                       JSON, TTL     what is known of it
    v1:nodes:{node:<id>}:reserved                  zset          job ids by when the slot runs out
    v1:nodes:{node:<id>}:away                      zset          models by until when they are away
    v1:nodes:{node:<id>}:away_marks                zset          marks of the last seconds
    v1:nodes:{node:<id>}:drain                     string, TTL   the node gets no more jobs
    v1:sessions:{instance:<id>}:listed             zset, TTL     its sessions, by id
    v1:requests:lock:<request>                     string, TTL   who makes the job of a request
    v1:requests:binding:<request>                  JSON, TTL     the job of a request
    v1:jobs:{job:<id>}:fsm                         hash, TTL     a node job
    v1:jobs:{instance:<id>}:homed                  zset          jobs an instance is in charge of
    v1:signals                                     channel       hints to all instances
"""

from typing import Final

from redis.crc import key_slot

from ksana.domain.nodes.records import OwnerKind

SLOTS: Final = 16_384


def slot_of(key: str) -> int:
    """The slot of a key in a Cluster."""
    return key_slot(key.encode())


class RedisKeys:
    """The keys of one installation, under its prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.instances = f"{prefix}:v1:schedulers:all"
        self.nodes_all = f"{prefix}:v1:nodes:all"
        self.nodes_last_seen = f"{prefix}:v1:nodes:last_seen"
        self.signals = f"{prefix}:v1:signals"

    def presence(self, instance_id: str) -> str:
        return f"{self.prefix}:schedulers:presence:{instance_id}"

    def owner(self, kind: OwnerKind, owned_id: str) -> str:
        return f"{self.prefix}:{kind}s:owner:{{{kind}:{owned_id}}}"

    def inbox(self, instance_id: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance_id}}}:inbox"

    def dlq(self, instance_id: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance_id}}}:dlq"

    def drainer(self, instance_id: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance_id}}}:drainer"

    def node_presence(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:presence:{node_id}"

    def node_snapshot(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:snapshot:{node_id}"

    def reserved(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:reserved"

    def away(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:away"

    def away_marks(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:away_marks"

    def drain(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:drain"

    def sessions(self, instance_id: str) -> str:
        return f"{self.prefix}:v1:sessions:{{instance:{instance_id}}}:listed"

    def request_lock(self, request_id: str) -> str:
        return f"{self.prefix}:v1:requests:lock:{request_id}"

    def request_binding(self, request_id: str) -> str:
        return f"{self.prefix}:v1:requests:binding:{request_id}"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}:v1:jobs:{{job:{job_id}}}:fsm"

    def homed(self, instance_id: str) -> str:
        return f"{self.prefix}:v1:jobs:{{instance:{instance_id}}}:homed"
