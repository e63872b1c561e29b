"""Every setting there is: one frozen tree, in which each field carries its kind, its names and one
sentence.

The tree is the table: flags, environment names, `ksana config` and the reference page are read from
it. How values are found is in `settings_sources`. A field `x_us` is the setting `x`, a duration.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec

from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Micros
from ksana.boot.settings.values import (
    BASE_URL,
    COORDINATION_URL,
    ENDPOINT_URL,
    SHARES,
    SIZE,
    STORE_URL,
    SWITCH,
    WORDS,
    Kind,
    choice,
    duration,
    integer,
    text,
)

ENV_PREFIX: Final = "KSANA_"
DEFAULT_SERVICE: Final = "ksana"


class About(msgspec.Struct, frozen=True):
    """What is said of a setting beside its default: its kind, its sentence, further names, whether
    it is secret."""

    kind: Kind
    help: str
    env: tuple[str, ...] = ()
    flag: str | None = None
    secret: bool = False


class Server(msgspec.Struct, frozen=True):
    host: Annotated[
        str,
        About(
            text(pattern=r"[^\s]{1,255}", allowed="a host name or an address"),
            "The address to listen on.",
            ("KSANA_HOST",),
            "--host",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        About(
            integer(0, 65_535),
            "The port to listen on; 0 takes a free one.",
            ("KSANA_PORT", "PORT"),
            "--port",
        ),
    ] = 7100
    graceful_timeout_us: Annotated[
        Micros,
        About(
            duration(0, HOUR),
            "How long a shutdown waits for what runs.",
            ("KSANA_GRACEFUL_TIMEOUT",),
        ),
    ] = 10 * SECOND
    insecure: Annotated[
        bool,
        About(SWITCH, "Allow a non-loopback address although no API key exists.", (), "--insecure"),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        About(WORDS, "Further values of the Host header that are answered on loopback."),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], About(WORDS, "Origins whose pages may call the API from a browser.")
    ] = ()


class StoreSettings(msgspec.Struct, frozen=True):
    url: Annotated[
        str,
        About(
            STORE_URL,
            "Where everything is kept: sqlite:///…, mysql://…, postgresql://… or json:///…. "
            "If unset, ksana.db in the data folder.",
            ("KSANA_STORE",),
            "--store",
        ),
    ] = ""
    data_dir: Annotated[
        str,
        About(
            text(),
            "The folder for the default database.",
            ("KSANA_DATA", "KSANA_DATA_DIR", "DATA_DIR"),
            "--data-dir",
        ),
    ] = "./data"
    migrate: Annotated[bool, About(SWITCH, "Bring the schema up to date on start.")] = True
    durability: Annotated[
        Literal["warn", "strict"],
        About(
            choice("warn", "strict"),
            "What to do about a database that answers before the disk has it.",
        ),
    ] = "warn"
    retention_us: Annotated[
        Micros,
        About(
            duration(MINUTE),
            "How long finished runs, jobs and events are kept.",
            ("KSANA_RETENTION",),
        ),
    ] = 30 * DAY
    audit_retention_us: Annotated[
        Micros, About(duration(DAY), "How long audit records are kept.", ("KSANA_AUDIT_RETENTION",))
    ] = 365 * DAY


class Coordination(msgspec.Struct, frozen=True):
    url: Annotated[
        str,
        About(
            COORDINATION_URL,
            "memory, redis://… or redis+cluster://host:port,host:port.",
            ("KSANA_COORDINATION",),
            "--coordination",
        ),
    ] = "memory"
    key_prefix: Annotated[
        str,
        About(
            text(pattern=r"[A-Za-z0-9._:-]{1,64}", allowed="1 to 64 letters, digits or ._:-"),
            "What the names of all Redis keys begin with.",
        ),
    ] = "ksana"
    instance_id: Annotated[
        str,
        About(
            text(pattern=r"[A-Za-z0-9._:-]{1,100}", allowed="1 to 100 letters, digits or ._:-"),
            "The name of this process; each start adds its process id and chance. auto takes the host's name.",
            ("KSANA_INSTANCE_ID",),
        ),
    ] = "auto"


class Timers(msgspec.Struct, frozen=True):
    default_timeout_us: Annotated[
        Micros,
        About(
            duration(MILLISECOND, DAY),
            "How long one attempt of a timer may take if it does not say.",
            ("KSANA_DEFAULT_TIMEOUT", "DEFAULT_TIMEOUT"),
        ),
    ] = 10 * SECOND
    max_retries: Annotated[
        int,
        About(
            integer(0, 1000),
            "Tries after the first, for timers that do not say.",
            ("KSANA_MAX_RETRIES", "MAX_RETRIES"),
        ),
    ] = 3
    retry_backoff_us: Annotated[
        Micros,
        About(
            duration(0, DAY),
            "Pause before each of these tries.",
            ("KSANA_RETRY_BACKOFF", "RETRY_BACKOFF"),
        ),
    ] = 5 * SECOND
    once_grace_us: Annotated[
        Micros, About(duration(0, DAY), "How far in the past a once timer may lie when it is made.")
    ] = SECOND


class Tasks(msgspec.Struct, frozen=True):
    workers: Annotated[
        int,
        About(
            integer(1, 10_000),
            "Calls in flight at most, of timers and tasks.",
            ("KSANA_WORKERS", "WORKERS"),
            "--workers",
        ),
    ] = 64
    per_host: Annotated[int, About(integer(1, 10_000), "Calls in flight at most to one host.")] = 16
    request_timeout_us: Annotated[
        Micros,
        About(
            duration(MILLISECOND, DAY),
            "How long one attempt of a task may take if it does not say.",
        ),
    ] = 10 * SECOND
    max_retries: Annotated[
        int, About(integer(0, 1000), "Tries after the first, for tasks without a retry policy.")
    ] = 0
    misfire_grace_us: Annotated[
        Micros, About(duration(0, 30 * DAY), "How late a slot may start while instances run.")
    ] = MINUTE
    history_limit: Annotated[
        int, About(integer(1, 1_000_000), "Successful runs kept per task.")
    ] = 1000
    response_limit: Annotated[
        int, About(SIZE, "Bytes of a target's answer that are stored; 0 stores all.")
    ] = 64 * 1024
    max_queued: Annotated[
        int, About(integer(0, 100_000), "Runs of one task that may wait for their turn.")
    ] = 100
    follow_redirects: Annotated[int, About(integer(0, 5), "Redirects followed.")] = 0
    on_orphan: Annotated[
        Literal["retry", "fail"],
        About(choice("retry", "fail"), "What becomes of a run whose instance died."),
    ] = "retry"
    delivery: Annotated[
        Literal["at_least_once", "at_most_once"],
        About(
            choice("at_least_once", "at_most_once"),
            "Whether a call of unknown outcome is sent again.",
        ),
    ] = "at_least_once"
    plain_http: Annotated[
        Literal["own", "libcurl"],
        About(
            choice("own", "libcurl"),
            "What calls http:// targets: our own client, or libcurl as for https://.",
        ),
    ] = "own"
    dst_gap: Annotated[
        Literal["debian", "next", "skip", "shift"],
        About(
            choice("debian", "next", "skip", "shift"),
            "When a time falls into the hour that is left out.",
        ),
    ] = "debian"
    dst_overlap: Annotated[
        Literal["debian", "first", "second", "both"],
        About(choice("debian", "first", "second", "both"), "When a time comes twice."),
    ] = "debian"
    retry_on_callback_failure: Annotated[
        bool, About(SWITCH, "Whether a failed or missing callback is retried.")
    ] = False
    poll_interval_us: Annotated[
        Micros,
        About(
            duration(100 * MILLISECOND, MINUTE),
            "How often the store is asked although nothing was signalled.",
        ),
    ] = 5 * SECOND
    ahead_us: Annotated[
        Micros, About(duration(SECOND, HOUR), "How far ahead due tasks are held in memory.")
    ] = 30 * SECOND
    batch_limit: Annotated[
        int, About(integer(1, 10_000), "Due tasks taken in one transaction.")
    ] = 500


class Callback(msgspec.Struct, frozen=True):
    base_url: Annotated[
        str, About(BASE_URL, "How targets reach this server; if unset, the address it listens on.")
    ] = ""
    token_ttl_us: Annotated[
        Micros,
        About(
            duration(0, 365 * DAY), "How long a callback token lives after its run has finished."
        ),
    ] = HOUR
    identity_mode: Annotated[
        bool, About(SWITCH, "Accept callbacks that name task and run instead of a token.")
    ] = True


class Egress(msgspec.Struct, frozen=True):
    allow: Annotated[
        tuple[str, ...],
        About(WORDS, "Networks and hosts that may be called although a rule denies them."),
    ] = ()
    deny: Annotated[
        tuple[str, ...], About(WORDS, "Networks and hosts that may not be called.")
    ] = ()


class Capacity(msgspec.Struct, frozen=True):
    total: Annotated[
        int, About(integer(1, 1_000_000_000), "Units that running queue jobs may hold together.")
    ] = 100
    shares: Annotated[
        tuple[tuple[str, int], ...], About(SHARES, "Most units that one addon may hold, by its id.")
    ] = ()


class Queue(msgspec.Struct, frozen=True):
    claim_ttl_us: Annotated[
        Micros, About(duration(SECOND, DAY), "How long a claim lasts without a sign of its worker.")
    ] = MINUTE


class GovernanceWorker(msgspec.Struct, frozen=True):
    enabled: Annotated[bool, About(SWITCH, "Run the built-in worker.")] = False
    interval_us: Annotated[
        Micros, About(duration(100 * MILLISECOND, DAY), "How often it looks for work.")
    ] = 5 * SECOND
    webhook: Annotated[
        str, About(BASE_URL, "Where it sends verify, revalidate and reinstate-check.")
    ] = ""


class Governance(msgspec.Struct, frozen=True):
    require_lease_token: Annotated[
        bool, About(SWITCH, "Refuse ack, fail and renew without a lease token.")
    ] = False
    verify_limit: Annotated[
        int, About(integer(0, 1000), "Verifications that an unknowable object gets, ever.")
    ] = 2
    auto_verify_budget: Annotated[
        int, About(integer(0, 1000), "Verifications that an uncertain object starts with.")
    ] = 2
    allow_simulation: Annotated[
        bool, About(SWITCH, "Allow a pull to name a time ahead of ours.")
    ] = False
    worker: GovernanceWorker = GovernanceWorker()


class Nodes(msgspec.Struct, frozen=True):
    owner_ttl_us: Annotated[
        Micros, About(duration(SECOND, HOUR), "Life of an owner key without renewal.")
    ] = 45 * SECOND
    presence_ttl_us: Annotated[
        Micros, About(duration(SECOND, HOUR), "Life of a presence key without renewal.")
    ] = 45 * SECOND
    refresh_interval_us: Annotated[
        Micros,
        About(duration(100 * MILLISECOND, MINUTE), "How often the view of all nodes is refreshed."),
    ] = SECOND
    remove_stale_after_us: Annotated[
        Micros, About(duration(SECOND, 30 * DAY), "When a node that is gone leaves the list.")
    ] = 600 * SECOND
    stream_group: Annotated[
        str,
        About(
            text(pattern=r"[A-Za-z0-9._:-]{1,64}", allowed="1 to 64 letters, digits or ._:-"),
            "The consumer group on the inbox streams.",
        ),
    ] = "scheduler"
    stream_block_us: Annotated[
        Micros, About(duration(10 * MILLISECOND, MINUTE), "How long one read of the inbox waits.")
    ] = SECOND
    stream_count: Annotated[int, About(integer(1, 10_000), "Messages taken in one read.")] = 64
    stream_maxlen: Annotated[
        int, About(integer(10, 100_000_000), "Length of an inbox at most.")
    ] = 10_000
    dlq_enabled: Annotated[
        bool, About(SWITCH, "Move messages that fail again and again to the dead letters.")
    ] = True
    dlq_maxlen: Annotated[
        int, About(integer(10, 100_000_000), "Length of the dead letter stream at most.")
    ] = 10_000
    dlq_max_deliveries: Annotated[
        int, About(integer(1, 1000), "Deliveries before a message is moved.")
    ] = 10
    dlq_min_idle_us: Annotated[
        Micros, About(duration(SECOND, DAY), "How long it must have been left alone.")
    ] = MINUTE
    dlq_scan_interval_us: Annotated[
        Micros, About(duration(100 * MILLISECOND, HOUR), "How often they are looked for.")
    ] = 5 * SECOND
    dlq_scan_count: Annotated[int, About(integer(1, 10_000), "Messages looked at in one go.")] = 100


class Logging(msgspec.Struct, frozen=True):
    level: Annotated[
        str,
        About(
            choice("debug", "info", "warning", "warn", "error"),
            "The least level that is written.",
            ("KSANA_LOG_LEVEL", "LOG_LEVEL"),
            "--log-level",
        ),
    ] = "info"
    format: Annotated[
        str,
        About(
            choice("auto", "json", "console"),
            "The form of a line; auto is console on a terminal, else JSON.",
            ("KSANA_LOG_FORMAT",),
            "--log-format",
        ),
    ] = "auto"


class MetricsSettings(msgspec.Struct, frozen=True):
    enabled: Annotated[bool, About(SWITCH, "Serve /metrics.")] = True


class TracingSettings(msgspec.Struct, frozen=True):
    endpoint: Annotated[
        str,
        About(
            ENDPOINT_URL,
            "Where OpenTelemetry spans go, over HTTP, such as http://collector:4318; if unset, none do.",
            ("OTEL_EXPORTER_OTLP_ENDPOINT",),
        ),
    ] = ""
    traces_endpoint: Annotated[
        str,
        About(
            ENDPOINT_URL,
            "The same as a whole address, taken as it is; it wins.",
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",),
        ),
    ] = ""
    service_name: Annotated[
        str,
        About(
            text(pattern=r"[^\s]{1,255}", allowed="1 to 255 characters without a space"),
            "The service that spans are of.",
            ("OTEL_SERVICE_NAME",),
        ),
    ] = DEFAULT_SERVICE


class Settings(msgspec.Struct, frozen=True):
    """The whole tree, as the composition root reads it."""

    server: Server = Server()
    store: StoreSettings = StoreSettings()
    coordination: Coordination = Coordination()
    timers: Timers = Timers()
    tasks: Tasks = Tasks()
    callback: Callback = Callback()
    egress: Egress = Egress()
    capacity: Capacity = Capacity()
    queue: Queue = Queue()
    governance: Governance = Governance()
    nodes: Nodes = Nodes()
    logging: Logging = Logging()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()


class Setting(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    path: tuple[str, ...]
    """The attributes that lead to it in the tree."""
    default: Any
    about: About

    @property
    def env(self) -> tuple[str, ...]:
        """Its names in the environment, the one that wins first."""
        return (ENV_PREFIX + self.name.upper().replace(".", "_"), *self.about.env)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags, the shortest first."""
        long = "--" + self.name.replace(".", "-").replace("_", "-")
        return (long,) if self.about.flag is None else (self.about.flag, long)

    def show(self, value: Any) -> str:
        """Print a value as it could be written, secrets masked."""
        if self.about.secret and value:
            return "***"
        return self.about.kind.show(value)


def _walk(node: msgspec.Struct, path: tuple[str, ...]) -> Iterator[Setting]:
    hints = get_type_hints(type(node), include_extras=True)
    for field in node.__struct_fields__:
        value, here = getattr(node, field), (*path, field)
        if isinstance(value, msgspec.Struct):
            yield from _walk(value, here)
        else:
            name = ".".join(here).removesuffix("_us")
            about: About = hints[field].__metadata__[0]
            yield Setting(name, here, value, about)


TABLE: Final[dict[str, Setting]] = {setting.name: setting for setting in _walk(Settings(), ())}
"""Every setting by its dotted name, in the order of the tree."""
