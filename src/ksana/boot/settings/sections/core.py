"""The settings that no surface owns."""

from typing import Annotated, Final, Literal

import msgspec

from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Micros
from ksana.boot.settings.values import (
    COORDINATION_URL,
    ENDPOINT_URL,
    SECRET_KEYS,
    STORE_URL,
    SWITCH,
    WORDS,
    About,
    choice,
    duration,
    integer,
    text,
)

DEFAULT_SERVICE: Final = "ksana"


class ServerSettings(msgspec.Struct, frozen=True):
    """How the API is served."""

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
    """Where everything is kept, and for how long."""

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
    dead_letter_retention_us: Annotated[
        Micros,
        About(
            duration(0),
            "How long dead letters are kept that nobody settles. 0s: for ever.",
            ("KSANA_DEAD_LETTER_RETENTION",),
        ),
    ] = 0
    audit_retention_us: Annotated[
        Micros, About(duration(DAY), "How long audit records are kept.", ("KSANA_AUDIT_RETENTION",))
    ] = 365 * DAY


class CoordinationSettings(msgspec.Struct, frozen=True):
    """What instances share beside the store."""

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
            "The name of this process; each start adds its process id and a random part. "
            "auto takes the host's name.",
            ("KSANA_INSTANCE_ID",),
        ),
    ] = "auto"


class SecretSettings(msgspec.Struct, frozen=True):
    """Secrets in the store."""

    key: Annotated[
        str,
        About(
            SECRET_KEYS,
            "The key by which secrets are sealed: 32 bytes in base64 or hex. Several, the present "
            "one first, while a key is replaced; without one they are stored in clear text.",
            secret=True,
        ),
    ] = ""


class LimitSettings(msgspec.Struct, frozen=True):
    """What one caller may take."""

    rate: Annotated[
        int,
        About(
            integer(1, 1_000_000),
            "Requests a second by one key, or by one address without keys; twice as many at once. "
            "At the default, calls from this machine without a key are not counted.",
        ),
    ] = 5000
    connections: Annotated[
        int,
        About(
            integer(1, 1_000_000),
            "Connections open at a time from one address, of IPv6 from one /64.",
        ),
    ] = 5000
    total_connections: Annotated[
        int,
        About(
            integer(1, 1_000_000),
            "Connections open at a time in all; fewer where the descriptor limit needs it.",
        ),
    ] = 20_000


class EgressSettings(msgspec.Struct, frozen=True):
    """What may be called."""

    allow: Annotated[
        tuple[str, ...],
        About(WORDS, "Networks and hosts that may be called although a rule denies them."),
    ] = ()
    deny: Annotated[
        tuple[str, ...], About(WORDS, "Networks and hosts that may not be called.")
    ] = ()


class LoggingSettings(msgspec.Struct, frozen=True):
    """Log lines."""

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
    access: Annotated[
        bool,
        About(
            SWITCH,
            "Write a line for each request.",
            ("KSANA_LOG_ACCESS",),
            "--log-access",
        ),
    ] = False


class MetricsSettings(msgspec.Struct, frozen=True):
    """Metrics."""

    enabled: Annotated[bool, About(SWITCH, "Serve /metrics.")] = True


class TracingSettings(msgspec.Struct, frozen=True):
    """Spans."""

    endpoint: Annotated[
        str,
        About(
            ENDPOINT_URL,
            "Where OpenTelemetry spans go, over HTTP, such as http://collector:4318; "
            "if unset, none do.",
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
