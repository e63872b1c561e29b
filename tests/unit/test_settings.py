"""Settings: four sources in order, each value with its origin, and clear errors."""

from pathlib import Path

import pytest

from ksana.base.errors import SetupError
from ksana.base.instant import DAY, SECOND
from ksana.boot.settings import reference
from ksana.boot.settings.sections import find_sections
from ksana.boot.settings.sections.core import ServerSettings
from ksana.boot.settings.sections.nodes import NodeSettings
from ksana.boot.settings.sections.tasks import CallbackSettings, TaskSettings
from ksana.boot.settings.sources import Loaded, load
from ksana.boot.settings.table import TABLE, Settings
from ksana.boot.settings.values import sqlite_url, url_of_go_dsn

pytestmark = pytest.mark.spec("X15")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str) -> None:
    Path("ksana.toml").write_text(text, encoding="utf-8")


def origin(loaded: Loaded, name: str) -> str:
    return next(value.origin for value in loaded.values if value.setting.name == name)


def shown(loaded: Loaded, name: str) -> str:
    return next(value.shown for value in loaded.values if value.setting.name == name)


def test_with_nothing_given_the_defaults_hold_and_the_store_lies_in_the_data_folder() -> None:
    loaded = load({}, {})
    assert (loaded.settings.server.host, loaded.settings.server.port) == ("127.0.0.1", 7100)
    assert loaded.settings.store.url == "sqlite:///data/ksana.db"
    assert loaded.settings.section(TaskSettings).workers == 64
    assert {value.origin.partition(" ")[0] for value in loaded.values} == {"default"}
    assert loaded.warnings == ()


def test_flags_beat_the_environment_which_beats_the_file_which_beats_defaults() -> None:
    write("[server]\nport = 1\nhost = '127.0.0.3'\ngraceful_timeout = '3s'\n")
    loaded = load({"server.port": "3"}, {"PORT": "2", "KSANA_HOST": "127.0.0.2"})
    assert (loaded.settings.server.port, origin(loaded, "server.port")) == (3, "flag --port")
    assert (loaded.settings.server.host, origin(loaded, "server.host")) == (
        "127.0.0.2",
        "environment KSANA_HOST",
    )
    assert loaded.settings.server.graceful_timeout_us == 3 * SECOND
    assert origin(loaded, "server.graceful_timeout") == "file ksana.toml"
    assert origin(loaded, "tasks.workers") == "default"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PORT", "8080", "server.port", 8080),
        ("KSANA_HOST", "::1", "server.host", "::1"),
        ("DATA_DIR", "/srv/d", "store.data_dir", "/srv/d"),
        ("KSANA_DATA", "/srv/k", "store.data_dir", "/srv/k"),
        ("WORKERS", "4", "tasks.workers", 4),
        ("DEFAULT_TIMEOUT", "1m30s", "timers.default_timeout", 90 * SECOND),
        ("MAX_RETRIES", "0", "timers.max_retries", 0),
        ("RETRY_BACKOFF", "500ms", "timers.retry_backoff", SECOND // 2),
        ("LOG_LEVEL", "DEBUG", "logging.level", "debug"),
        ("KSANA_STORE", "postgres://db/x", "store.url", "postgresql://db/x"),
        (
            "KSANA_COORDINATION",
            "redis+cluster://a:1,b:2",
            "coordination.url",
            "redis+cluster://a:1,b:2",
        ),
        ("KSANA_RETENTION", "P7D", "store.retention", 7 * DAY),
        ("KSANA_AUDIT_RETENTION", "2d", "store.audit_retention", 2 * DAY),
        ("KSANA_TASKS_RESPONSE_LIMIT", "128KiB", "tasks.response_limit", 128 * 1024),
        (
            "KSANA_EGRESS_DENY",
            "10.0.0.0/8, 192.168.0.0/16",
            "egress.deny",
            ("10.0.0.0/8", "192.168.0.0/16"),
        ),
        ("KSANA_CAPACITY_SHARES", "a=40,b=2", "capacity.shares", (("a", 40), ("b", 2))),
        ("KSANA_CALLBACK_IDENTITY_MODE", "off", "callback.identity_mode", False),
        ("KSANA_GOVERNANCE_WORKER_ENABLED", "true", "governance.worker.enabled", True),
    ],
)
def test_each_variable_sets_its_setting(variable: str, text: str, name: str, value: object) -> None:
    loaded = load({}, {variable: text})
    section, *steps = TABLE[name].path
    found: object = loaded.settings.surfaces.get(section) or getattr(loaded.settings, section)
    for step in steps:
        found = getattr(found, step)
    assert found == value
    assert origin(loaded, name) == f"environment {variable}"
    assert loaded.warnings == ()


def test_every_setting_has_a_variable_of_its_own_name() -> None:
    assert all(s.env[0] == "KSANA_" + name.upper().replace(".", "_") for name, s in TABLE.items())
    names = [variable for setting in TABLE.values() for variable in setting.env]
    assert len(names) == len(set(names)), "two settings share a variable"
    flags = [flag for setting in TABLE.values() for flag in setting.flags]
    assert len(flags) == len(set(flags)), "two settings share a flag"


def test_the_newer_name_of_the_data_folder_wins() -> None:
    assert (
        load({}, {"DATA_DIR": "a", "KSANA_DATA": "b"}).settings.store.url == "sqlite:///b/ksana.db"
    )


def test_an_empty_variable_counts_as_unset() -> None:
    assert load({}, {"PORT": "", "KSANA_STORE": ""}).settings == load({}, {}).settings


@pytest.mark.parametrize(
    ("folder", "url"),
    [
        ("./data", "sqlite:///data/ksana.db"),
        ("/srv/k/", "sqlite:////srv/k/ksana.db"),
        (".", "sqlite:///ksana.db"),
    ],
)
def test_the_default_store_lies_in_the_data_folder(folder: str, url: str) -> None:
    assert sqlite_url(folder) == url


def test_an_unknown_key_in_the_file_stops_the_start_and_names_the_nearest() -> None:
    write("[server]\nprot = 1\n")
    with pytest.raises(SetupError, match=r"unknown key 'server\.prot'.*'server\.port'"):
        load({}, {})


def test_an_unknown_flag_stops_the_start_and_names_the_nearest() -> None:
    with pytest.raises(SetupError, match=r"'task\.workers'.*'tasks\.workers'"):
        load({"task.workers": "1"}, {})


def test_an_unknown_variable_warns_and_names_the_nearest() -> None:
    (warning,) = load({}, {"KSANA_HOTS": "x", "OTHER": "y"}).warnings
    assert "KSANA_HOTS" in warning
    assert "KSANA_HOST" in warning


def test_service_links_of_kubernetes_are_ignored() -> None:
    links = {
        "KSANA_SERVICE_HOST": "10.0.0.1",
        "KSANA_SERVICE_PORT": "7100",
        "KSANA_SERVICE_PORT_HTTP": "7100",
        "KSANA_PORT": "tcp://10.0.0.1:7100",
        "KSANA_PORT_7100_TCP": "tcp://10.0.0.1:7100",
        "KSANA_PORT_7100_TCP_PROTO": "tcp",
        "KSANA_PORT_7100_TCP_PORT": "7100",
        "KSANA_PORT_7100_TCP_ADDR": "10.0.0.1",
        "KSANA_SERVER_PORT": "tcp://10.0.0.2:80",
        "KSANA_WEB_SERVICE_HOST": "10.0.0.3",
    }
    loaded = load({}, links)
    assert loaded.warnings == ()
    assert loaded.settings.server.port == 7100


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PORT": "abc"}, ("server.port", "'abc'", "environment PORT", "0 to 65535")),
        ({"PORT": "70000"}, ("server.port", "70000")),
        ({"WORKERS": "0"}, ("tasks.workers", "WORKERS", "from 1")),
        ({"DEFAULT_TIMEOUT": "soon"}, ("timers.default_timeout", "soon", "1h30m")),
        ({"LOG_LEVEL": "loud"}, ("logging.level", "debug, info")),
        ({"KSANA_STORE": "oracle://u:hidden@h"}, ("store.url", "KSANA_STORE", "sqlite://")),
        ({"KSANA_COORDINATION": "kafka://x"}, ("coordination.url", "redis://")),
        ({"KSANA_TASKS_DELIVERY": "maybe"}, ("tasks.delivery", "at_least_once")),
        ({"KSANA_METRICS_ENABLED": "perhaps"}, ("metrics.enabled", "true or false")),
    ],
)
def test_a_bad_value_stops_the_start_naming_itself_and_its_source(
    environ: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SetupError) as caught:
        load({}, environ)
    assert all(word in str(caught.value) for word in words)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["port = = 1", "a = 'é".encode("latin-1").decode("latin-1") + "", "[server]\nport='x'"]
)
def test_a_broken_file_stops_the_start_and_is_named(text: str) -> None:
    write(text)
    with pytest.raises(SetupError, match=r"ksana\.toml"):
        load({}, {})


def test_a_named_file_must_exist() -> None:
    with pytest.raises(SetupError, match=r"nowhere\.toml named by --config"):
        load({}, {}, "nowhere.toml")
    with pytest.raises(SetupError, match="KSANA_CONFIG"):
        load({}, {"KSANA_CONFIG": "nowhere.toml"})


def test_secrets_are_read_from_files_and_masked_when_shown() -> None:
    Path("url").write_text("mysql://app:p%40ss@db:3306/ksana\n", encoding="utf-8")
    loaded = load({}, {"KSANA_STORE_FILE": "url"})
    assert loaded.settings.store.url == "mysql://app:p%40ss@db:3306/ksana"
    assert shown(loaded, "store.url") == "mysql://***@db:3306/ksana"
    assert origin(loaded, "store.url") == "environment KSANA_STORE_FILE"


def test_a_variable_and_its_file_together_are_refused() -> None:
    Path("url").write_text("sqlite:///x.db", encoding="utf-8")
    with pytest.raises(SetupError, match="KSANA_STORE_FILE"):
        load({}, {"KSANA_STORE_FILE": "url", "KSANA_STORE": "sqlite:///y.db"})


def test_the_keys_of_the_cron_design_work_in_the_file() -> None:
    write(
        """
        [server]
        port = 8080
        graceful_timeout = "10s"
        [mysql]
        dsn = "user:pa@ss@tcp(127.0.0.1:3306)/cronjob?charset=utf8mb4&parseTime=True&loc=Local"
        max_open_conns = 50
        max_idle_conns = 10
        conn_max_lifetime = "300s"
        [scheduler]
        poll_interval = "1s"
        ahead_seconds = 30
        batch_limit = 200
        enable_seconds_field = true
        [executor]
        worker_pool_size = 16
        request_timeout = "15s"
        [executor.default_retry]
        max_retries = 0
        [callback]
        base_url = "http://cronjob.internal/api/v1/callbacks"
        token_ttl = "3600s"
        [metrics]
        enabled = true
        [logging]
        level = "info"
        """
    )
    loaded = load({}, {})
    settings = loaded.settings
    assert settings.store.url == "mysql://user:pa%40ss@127.0.0.1:3306/cronjob"
    assert (
        settings.section(TaskSettings).workers,
        settings.section(TaskSettings).request_timeout_us,
    ) == (16, 15 * SECOND)
    assert (
        settings.section(TaskSettings).poll_interval_us,
        settings.section(TaskSettings).batch_limit,
    ) == (SECOND, 200)
    assert settings.section(CallbackSettings).base_url == "http://cronjob.internal"
    assert origin(loaded, "tasks.workers") == "file ksana.toml (executor.worker_pool_size)"
    assert len(loaded.warnings) == 5, "keys without effect are told"


def test_the_keys_of_the_node_design_work_in_the_file() -> None:
    write(
        """
        [scheduler.phase2]
        enabled = true
        instance_id = "a1"
        owner_ttl_seconds = 30
        stream_group = "g"
        stream_block_ms = 500
        stream_count = 7
        stream_maxlen = 5000
        dlq_enabled = false
        dlq_min_idle_ms = 2500
        [scheduler.phase2.redis]
        mode = "cluster"
        cluster_urls = ["redis://a:7000", "redis://b:7001"]
        key_prefix = "lab"
        [scheduler.phase2.node_snapshot]
        enabled = true
        presence_ttl_seconds = 20
        refresh_interval_ms = 750
        remove_stale_after_seconds = 90
        """
    )
    settings = load({}, {}).settings
    assert settings.coordination.url == "redis+cluster://a:7000,b:7001"
    assert (settings.coordination.instance_id, settings.coordination.key_prefix) == ("a1", "lab")
    assert (
        settings.section(NodeSettings).owner_ttl_us,
        settings.section(NodeSettings).stream_block_us,
    ) == (
        30 * SECOND,
        SECOND // 2,
    )
    assert (
        settings.section(NodeSettings).dlq_enabled,
        settings.section(NodeSettings).dlq_min_idle_us,
    ) == (False, 5 * SECOND // 2)
    assert settings.section(NodeSettings).remove_stale_after_us == 90 * SECOND


def test_the_node_design_is_off_unless_enabled() -> None:
    write('[scheduler.phase2.redis]\nurl = "redis://h:1"\n')
    assert load({}, {}).settings.coordination.url == "memory"


def test_one_setting_under_two_names_is_refused() -> None:
    write("[tasks]\nworkers = 1\n[executor]\nworker_pool_size = 2\n")
    with pytest.raises(SetupError, match=r"tasks\.workers twice"):
        load({}, {})


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("root@tcp(db)/x", "mysql://root@db/x"),
        ("u:p/w@tcp([::1]:3307)/x?tls=true", "mysql://u:p%2Fw@[::1]:3307/x"),
        ("u:p@unix(/run/my.sock)/x", "mysql://u:p@localhost/x?unix_socket=/run/my.sock"),
        ("/x", "mysql://127.0.0.1:3306/x"),
        ("mysql://u:p@h/x", "mysql://u:p@h/x"),
    ],
)
def test_a_go_dsn_becomes_a_store_url(dsn: str, url: str) -> None:
    assert url_of_go_dsn(dsn) == url


def test_what_is_shown_can_be_read_back() -> None:
    for setting in TABLE.values():
        if setting.default not in ("", ()):
            assert setting.about.kind.read(setting.show(setting.default)) == setting.default, (
                setting.name
            )


def test_the_tree_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert page == reference.render(), "run: make docs"


def test_a_setting_that_is_gone_is_named_and_does_not_stop_the_start() -> None:
    write("[tasks]\nahead = '30s'\n")
    loaded = load({}, {})
    assert loaded.warnings == (
        "tasks.ahead in ksana.toml has no effect: "
        "due tasks are read from the store when they are due.",
    )
    assert "tasks.ahead" not in TABLE


def test_every_surface_brings_its_sections_and_no_two_the_same() -> None:
    sections = find_sections()
    assert {"timers", "tasks", "callback", "capacity", "queue"} <= set(sections)
    assert all(f"{name}." in " ".join(TABLE) for name in sections)
    settings = Settings()
    assert settings.section(TaskSettings).workers == 64
    with pytest.raises(LookupError, match="ServerSettings"):
        settings.section(ServerSettings)
