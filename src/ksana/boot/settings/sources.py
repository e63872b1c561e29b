"""Where settings come from: flags > environment > file > defaults. Every value keeps its origin.

What is wrong stops the start with a SetupError that names the key, the value's source and the
nearest known name.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ksana.base.errors import SetupError
from ksana.boot.settings.aliases import ALIASES, REDIS_KEYS, WITHOUT_EFFECT, coordination_url_of
from ksana.boot.settings.sections import find_sections
from ksana.boot.settings.table import ENV_PREFIX, TABLE, Setting, Settings
from ksana.boot.settings.values import sqlite_url

CONFIG_VARIABLE: Final = "KSANA_CONFIG"
DEFAULT_FILE: Final = "ksana.toml"
_OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "KSANA_URL", "KSANA_API_KEY"})
"""Names in our prefix that are no settings of the server."""

# Kubernetes puts the address of every service into the environment; a service called ksana makes
# these.
_SERVICE_LINK: Final = re.compile(
    r"KSANA_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)\Z"
)
_LINK_VALUE: Final = re.compile(r"(?:tcp|udp|sctp)://")
_MAX_FILE_BYTES: Final = 1 << 20


class Found(msgspec.Struct, frozen=True):
    """A value before it is read: as it was written, and where."""

    raw: Any
    origin: str


class Value(msgspec.Struct, frozen=True):
    """One setting as it holds: shown with secrets masked, and its origin."""

    setting: Setting
    shown: str
    origin: str


class Loaded(msgspec.Struct, frozen=True):
    """The settings, each value's origin, and what the operator should be told."""

    settings: Settings
    values: tuple[Value, ...]
    warnings: tuple[str, ...]
    file: str | None


def load(flags: Mapping[str, Any], environ: Mapping[str, str], config: str | None = None) -> Loaded:
    """Find every value. `flags` are by dotted name. Raise SetupError for the first thing that is
    wrong."""
    warnings: list[str] = []
    file = _config_file(config, environ)
    from_file = _read_file(file, warnings) if file is not None else {}
    from_env = dict(_read_environment(environ, warnings))
    from_flags = {}
    for name, raw in flags.items():
        if name not in TABLE:
            raise SetupError(f"There is no setting {name!r}{_nearest(name, TABLE)}")
        from_flags[name] = Found(raw, f"flag {TABLE[name].flags[0]}")
    tree: dict[str, Any] = {}
    values = []
    for setting in TABLE.values():
        found = (
            from_flags.get(setting.name)
            or from_env.get(setting.name)
            or from_file.get(setting.name)
        )
        value = setting.default if found is None else _read(setting, found)
        origin = "default" if found is None else found.origin
        if setting.name == "store.data_dir":
            data_dir = value
        _put(tree, setting.path, value)
        values.append(Value(setting, setting.show(value), origin))
    if not tree["store"]["url"]:
        tree["store"]["url"] = sqlite_url(data_dir)
        values = [_with_default_url(value, tree["store"]["url"]) for value in values]
    return Loaded(_build(tree), tuple(values), tuple(warnings), None if file is None else str(file))


def _config_file(config: str | None, environ: Mapping[str, str]) -> Path | None:
    for given, origin in ((config, "--config"), (environ.get(CONFIG_VARIABLE), CONFIG_VARIABLE)):
        if given:
            path = Path(given)
            if not path.is_file():
                raise SetupError(
                    f"The configuration file {given} named by {origin} does not exist."
                )
            return path
    path = Path(DEFAULT_FILE)
    return path if path.is_file() else None


def _parse_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise SetupError(f"The configuration file {path} is larger than 1 MiB.")
        return tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise SetupError(
            f"The configuration file {path} cannot be read: {error.strerror}."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"The configuration file {path} is not TOML: {error}.") from None


def _read_file(path: Path, warnings: list[str]) -> dict[str, Found]:
    origin = f"file {path}"
    found: dict[str, Found] = {}
    redis: dict[str, Any] = {}

    def keep(name: str, raw: Any, key: str) -> None:
        if name in found:
            raise SetupError(f"{path} gives {name} twice: {key} means the same. Keep one of them.")
        found[name] = Found(raw, origin if key == name else f"{origin} ({key})")

    for key, raw in _flatten(_parse_file(path), ""):
        if key in TABLE:
            keep(key, raw, key)
        elif key in ALIASES:
            keep(ALIASES[key].target, _converted(key, raw, origin), key)
        elif key in REDIS_KEYS:
            redis[key] = raw
        elif key in WITHOUT_EFFECT:
            warnings.append(f"{key} in {path} has no effect: {WITHOUT_EFFECT[key]}.")
        else:
            known = (*TABLE, *ALIASES, *REDIS_KEYS, *WITHOUT_EFFECT)
            raise SetupError(f"{path} has an unknown key {key!r}{_nearest(key, known)}")
    if redis:
        try:
            keep("coordination.url", coordination_url_of(redis), "scheduler.phase2.redis")
        except ValueError as error:
            raise SetupError(f"The coordination in {path} is wrong: {error}.") from None
    return found


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict) and name not in TABLE:
            yield from _flatten(value, name + ".")
        else:
            yield name, value


def _converted(key: str, raw: Any, origin: str) -> Any:
    try:
        return ALIASES[key].convert(raw)
    except ValueError as error:
        raise SetupError(f"{key} from {origin} is wrong: {error}.") from None


def _read_environment(
    environ: Mapping[str, str], warnings: list[str]
) -> Iterator[tuple[str, Found]]:
    known = set(_OTHER_VARIABLES)
    for setting in TABLE.values():
        winner = None
        for variable in setting.env:
            known.update((variable, variable + "_FILE"))
            found = _of_variable(variable, environ)
            winner = winner or found
        if winner is not None:
            yield setting.name, winner
    for variable in sorted(environ):
        if (
            variable.startswith(ENV_PREFIX)
            and variable not in known
            and _SERVICE_LINK.match(variable) is None
        ):
            near = _nearest(variable, sorted(known))
            warnings.append(f"The environment variable {variable} is no setting{near}")


def _of_variable(variable: str, environ: Mapping[str, str]) -> Found | None:
    """Read one variable, or the file its `_FILE` twin names. An empty one counts as unset."""
    text = environ.get(variable, "")
    if _SERVICE_LINK.match(variable) and _LINK_VALUE.match(text):
        text = ""
    file = environ.get(variable + "_FILE", "") if variable.startswith(ENV_PREFIX) else ""
    if text and file:
        raise SetupError(f"Both {variable} and {variable}_FILE are set. Keep one of them.")
    if file:
        try:
            content = Path(file).read_text("utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(
                f"The file {file} named by {variable}_FILE cannot be read: {error}."
            ) from None
        return Found(content, f"environment {variable}_FILE")
    return Found(text, f"environment {variable}") if text else None


def _read(setting: Setting, found: Found) -> Any:
    try:
        return setting.about.kind.read(found.raw)
    except ValueError as error:
        # A bad secret is named, never shown: half a URL may still hold the password.
        is_secret = setting.about.secret or setting.about.kind.name == "URL"
        shown = "its value" if is_secret else f"the value {found.raw!r}"
        raise SetupError(
            f"{setting.name}: {shown} from {found.origin} is wrong: {error}."
        ) from None


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if not near:
        leaf = name.rpartition(".")[2]
        near = [other for other in known if other.rpartition(".")[2] == leaf][:1]
    return (
        f"; the nearest known name is {near[0]!r}."
        if near
        else "; `ksana config` lists all settings."
    )


def _with_default_url(value: Value, url: str) -> Value:
    return (
        Value(value.setting, value.setting.show(url), "default (store.data_dir)")
        if value.setting.name == "store.url"
        else value
    )


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value


def _build(tree: dict[str, Any]) -> Settings:
    kinds = find_sections()
    surfaces = {name: _build_section(kind, tree.pop(name)) for name, kind in kinds.items()}
    own = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    core = {name: _build_section(own[name], values) for name, values in tree.items()}
    return Settings(**core, surfaces=surfaces)


def _build_section(kind: Any, tree: dict[str, Any]) -> Any:
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return kind(
        **{
            name: _build_section(types[name], value) if isinstance(value, dict) else value
            for name, value in tree.items()
        }
    )
