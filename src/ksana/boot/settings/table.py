"""Every setting there is: one frozen tree, in which each field carries its kind, its names and one
sentence.

The tree is the table: flags, environment names, `ksana config` and the reference page are read from
it. How values are found is in `sources`. A field `x_us` is the setting `x`, a duration.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from ksana.boot.settings.sections import find_sections
from ksana.boot.settings.sections.core import (
    CoordinationSettings,
    EgressSettings,
    LimitSettings,
    LoggingSettings,
    MetricsSettings,
    SecretSettings,
    ServerSettings,
    StoreSettings,
    TracingSettings,
)
from ksana.boot.settings.values import About

ENV_PREFIX: Final = "KSANA_"

S = TypeVar("S", bound=msgspec.Struct)


def _default_sections() -> Mapping[str, msgspec.Struct]:
    return {name: kind() for name, kind in find_sections().items()}


class Settings(msgspec.Struct, frozen=True):
    """The whole tree, as the composition root reads it: the core's sections by name, those of a
    surface by their type."""

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    secret: SecretSettings = SecretSettings()
    limits: LimitSettings = LimitSettings()
    coordination: CoordinationSettings = CoordinationSettings()
    egress: EgressSettings = EgressSettings()
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    surfaces: Mapping[str, msgspec.Struct] = msgspec.field(default_factory=_default_sections)

    def section(self, kind: type[S]) -> S:
        """The section of a surface."""
        for section in self.surfaces.values():
            if isinstance(section, kind):
                return section
        raise LookupError(f"no surface brings {kind.__name__}")


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


def _list_settings() -> Iterator[Setting]:
    whole = Settings()
    for section in whole.__struct_fields__:
        if section != "surfaces":
            yield from _walk(getattr(whole, section), (section,))
    for section, values in whole.surfaces.items():
        yield from _walk(values, (section,))


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


TABLE: Final[dict[str, Setting]] = {setting.name: setting for setting in _list_settings()}
"""Every setting by its dotted name, in the order of the tree."""
