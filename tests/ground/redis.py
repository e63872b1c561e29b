"""Private Redis: one server, and a cluster of masters (with replicas if asked for)."""

import contextlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.ground.child import free_port, wait_for
from tests.ground.server import Server, find_program

SLOTS = 16_384
BUS_OFFSET = 10_000
NODE_TIMEOUT_MS = 1_500
"""After which a cluster calls a silent node dead: short, so that a failover test takes seconds."""


class Redis(Server):
    """One redis-server. It forgets everything when it dies, unless `is_durable`."""

    name = "redis"

    def __init__(
        self, port: int | None = None, *, is_durable: bool = False, options: tuple[str, ...] = ()
    ) -> None:
        self._daemon = find_program("redis-server", "valkey-server")
        super().__init__(port)
        self._is_durable = is_durable
        self._options = options

    def command(self) -> list[str]:
        durability = (
            ["--appendonly", "yes", "--appendfsync", "always"]
            if self._is_durable
            else ["--appendonly", "no"]
        )
        return [
            self._daemon,
            *("--bind", self.host),
            *("--port", str(self.port)),
            *("--dir", str(self.folder)),
            *("--save", ""),
            *("--daemonize", "no"),
            *("--maxclients", "500"),
            *durability,
            *self._options,
        ]

    def connect(self, database: int = 0) -> "redis.Redis":
        """A plain client for the test's own questions."""
        return redis.Redis(
            host=self.host,
            port=self.port,
            db=database,
            socket_timeout=10,
            socket_connect_timeout=2,
            retry=Retry(NoBackoff(), 0),  # the test wants to know at once
            decode_responses=True,
        )

    def is_answering(self) -> bool:
        try:
            with self.connect() as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False

    def url(self, database: int | str = 0) -> str:
        return f"redis://{self.host}:{self.port}/{database}"

    def wipe(self) -> None:
        """Empty it, scripts included."""
        with self.connect() as client:
            client.flushall()
            client.script_flush()


class ClusterNode(Redis):
    """One node of a cluster."""

    name = "redis-node"

    def __init__(self) -> None:
        super().__init__(free_port(bus_offset=BUS_OFFSET))
        self._options = (
            *("--cluster-enabled", "yes"),
            *("--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
            *("--cluster-require-full-coverage", "no"),
            *("--repl-diskless-sync-delay", "0"),
        )

    def ask(self, *words: str | int) -> Any:
        """Send one CLUSTER command."""
        with self.connect() as client:
            return client.execute_command("CLUSTER " + str(words[0]), *words[1:])

    def node_id(self) -> str:
        return str(self.ask("MYID"))

    def is_settled(self, known: int) -> bool:
        """Does this node see `known` nodes, every slot served, and all well?"""
        info = self.ask("INFO")
        facts = (
            info
            if isinstance(info, dict)
            else dict(line.split(":", 1) for line in info.split() if ":" in line)
        )
        return (
            facts["cluster_state"] == "ok"
            and int(facts["cluster_known_nodes"]) == known
            and int(facts["cluster_slots_ok"]) == SLOTS
        )


class RedisCluster:
    """A Redis Cluster on loopback. `masters` share the slots evenly; each has `replicas` copies."""

    def __init__(self, masters: int = 3, replicas: int = 0) -> None:
        self.masters = [ClusterNode() for _ in range(masters)]
        self.replicas = [ClusterNode() for _ in range(masters * replicas)]

    @property
    def nodes(self) -> list[ClusterNode]:
        return [*self.masters, *self.replicas]

    def start(self) -> None:
        """Start every node; the first time also form the cluster. Wait until all agree that all is
        well."""
        is_new = not Path(self.masters[0].folder, "nodes.conf").exists()
        for node in self.nodes:
            node.start()
        if is_new:
            self._form()
        wait_for(self.is_settled, "the cluster settles", within_s=30, every_s=0.05)

    def is_settled(self) -> bool:
        return all(node.is_settled(len(self.nodes)) for node in self.nodes)

    def _form(self) -> None:
        share = -(-SLOTS // len(self.masters))
        for index, node in enumerate(self.masters):
            node.ask("SET-CONFIG-EPOCH", index + 1)
            node.ask("ADDSLOTS", *range(index * share, min(SLOTS, (index + 1) * share)))
        first = self.masters[0]
        for node in self.nodes[1:]:
            node.ask("MEET", first.host, first.port)
        for index, node in enumerate(self.replicas):
            master = self.masters[index % len(self.masters)].node_id()
            wait_for(
                partial(_replicates, node, master), "a replica is told whom to follow", every_s=0.05
            )
            wait_for(partial(_is_in_step, node), "a replica follows", every_s=0.05)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def pause(self) -> None:
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        for node in self.nodes:
            node.resume()

    def heal(self) -> None:
        """Bring every node back and wait until the cluster is whole."""
        for node in self.nodes:
            node.heal()
        wait_for(self.is_settled, "the cluster settles", within_s=30, every_s=0.05)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
            shutil.rmtree(node.folder, ignore_errors=True)

    def connect(self) -> "redis.RedisCluster":
        """A cluster client for the test's own questions."""
        return redis.RedisCluster(
            host=self.masters[0].host, port=self.masters[0].port, decode_responses=True
        )

    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in self.masters)

    def wipe(self) -> None:
        """Empty every node that is a master now."""
        for node in self.nodes:
            with contextlib.suppress(redis.ReadOnlyError):
                node.wipe()


def _replicates(node: ClusterNode, master: str) -> bool:
    """Tell a node to follow `master`; it refuses until gossip has told it of that node."""
    try:
        node.ask("REPLICATE", master)
    except redis.ResponseError:
        return False
    return True


def _is_in_step(node: ClusterNode) -> bool:
    with node.connect() as client:
        return bool(client.info("replication").get("master_link_status") == "up")
