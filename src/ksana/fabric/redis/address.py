"""Where Redis is: `redis://…`, `rediss://…`, `redis+cluster://host:port,host:port` and connections
made from it."""

import re
from typing import Any, Final

import msgspec
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ksana.base.errors import SetupError

CONNECT_WITHIN_SEC: Final = 1.0
_DEFAULT_PORT: Final = 6379
_SEED = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]@/]+)(:(?P<port>\d{1,5}))?\Z")


class Address(msgspec.Struct, frozen=True):
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class RedisUrl(msgspec.Struct, frozen=True):
    """A coordination URL, taken apart."""

    seeds: tuple[Address, ...]
    is_cluster: bool
    options: dict[str, Any]
    """What every connection is made with: who we are, TLS, the database."""

    def connection(self, address: Address) -> AbstractConnection:
        """A connection to one server, not open yet. It neither retries nor times out by itself:
        its user bounds every exchange."""
        options = dict(self.options)
        kind: type[Connection] = options.pop("connection_class", Connection)
        return kind(
            **options,
            host=address.host,
            port=address.port,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_WITHIN_SEC,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )


def read_url(url: str) -> RedisUrl:
    """Take a coordination URL apart. Raise SetupError for one that cannot be right."""
    scheme, _, rest = url.partition("://")
    is_cluster = scheme.endswith("+cluster")
    plain = scheme.removesuffix("+cluster")
    credentials, at, places = rest.rpartition("@")
    hosts, slash, path = places.partition("/")
    hosts, mark, query = (hosts, slash, path) if slash else hosts.partition("?")
    seeds = tuple(_read_seed(text) for text in hosts.split(",") if text)
    if plain not in ("redis", "rediss") or not seeds or (len(seeds) > 1 and not is_cluster):
        raise SetupError(
            "coordination.url must be redis://host:port/db, rediss://… or "
            "redis+cluster://host:port,host:port"
        )
    tail = f"/{path}" if slash else f"{mark}{query}"
    try:
        options = dict(parse_url(f"{plain}://{credentials}{at}{seeds[0]}{tail}"))
    except ValueError as error:
        raise SetupError(f"coordination.url is wrong: {error}") from None
    options.pop("host", None)
    options.pop("port", None)
    if is_cluster and options.pop("db", 0):
        raise SetupError("a Redis Cluster has only database 0: leave it out of coordination.url")
    return RedisUrl(seeds=seeds, is_cluster=is_cluster, options=options)


def _read_seed(text: str) -> Address:
    match = _SEED.match(text)
    if match is None:
        raise SetupError(f"{text!r} in coordination.url is not host:port")
    return Address(host=match["host"].strip("[]"), port=int(match["port"] or _DEFAULT_PORT))
