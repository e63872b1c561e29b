"""A surface joins by being a module: nothing else is edited."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ksana.boot import doctor, surfaces
from ksana.boot.server import KsanaServer
from ksana.boot.settings import sections
from ksana.boot.settings.sections.core import MetricsSettings
from ksana.boot.settings.table import Settings
from ksana.domain.zones import rules_version

PLANTED = """
    from typing import Final

    from ksana.api.core.routing import Call, Route
    from ksana.boot.surface import CoreServices, Surface
    from ksana.engine.core.supervisor import Loop

    ORDER: Final = 15


    async def answer(call: Call) -> dict[str, str]:
        return {}


    async def run() -> None:
        pass


    async def look(settings: object) -> str:
        return "the orchard stands"


    DOCTOR_CHECKS: Final = {"orchard": look}


    def make_surface(core: CoreServices) -> Surface:
        core.retention.add("apples", 1, lambda tx, before, limit: 0)
        route = Route("GET", "/api/v1/orchard", answer, scope="tasks:read", summary="Look")
        return Surface(
            name="orchard",
            routes=(route,),
            loops=(Loop("orchard-picking", run),),
            found=lambda tx: {"apples": 3},
        )
"""
SECTION = """
    from typing import Annotated, Any, Final

    import msgspec

    from ksana.boot.settings.values import About, integer


    class OrchardSettings(msgspec.Struct, frozen=True):
        trees: Annotated[int, About(integer(1, 9), "Trees.")] = 7


    SECTIONS: Final[dict[str, type[Any]]] = {"NAME": OrchardSettings}
"""


def plant(package: Any, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "orchard.py").write_text(dedent(text))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])


@pytest.fixture
def _forgetful() -> Iterator[None]:
    """What was planted is forgotten afterwards."""
    sections.find_sections.cache_clear()
    yield
    sections.find_sections.cache_clear()
    for package in (surfaces, sections):
        sys.modules.pop(f"{package.__name__}.orchard", None)
        if hasattr(package, "orchard"):
            delattr(package, "orchard")


def paths_of(server: KsanaServer) -> set[str]:
    app: Any = server._http.config.app
    return {route.path for route in app.router.routes}


@pytest.mark.usefixtures("_forgetful")
async def test_a_module_beside_the_others_is_served_and_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(surfaces, tmp_path / "planted", PLANTED, monkeypatch)
    server = KsanaServer(Settings())
    names = [surface.name for surface in server._surfaces]
    assert names == ["tasks", "orchard", "queue", "governance"]
    assert "/api/v1/orchard" in paths_of(server)
    assert "apples" in server._retention.removed
    orchard = server._surfaces[1]
    assert [loop.name for loop in orchard.loops] == ["orchard-picking"]
    findings = {finding.name: finding for finding in await doctor.examine(Settings())}
    assert findings["orchard"].text == "the orchard stands"


@pytest.mark.usefixtures("_forgetful")
def test_a_module_of_settings_joins_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(sections, tmp_path / "planted", SECTION.replace("NAME", "orchard"), monkeypatch)
    found: Any = Settings().surfaces["orchard"]
    assert found.trees == 7


@pytest.mark.usefixtures("_forgetful")
def test_two_sections_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(sections, tmp_path / "planted", SECTION.replace("NAME", "queue"), monkeypatch)
    with pytest.raises(ValueError, match="two surfaces bring a section of settings called 'queue'"):
        sections.find_sections()


def test_tasks_come_before_the_queue() -> None:
    names = [surface.name for surface in KsanaServer(Settings())._surfaces]
    assert names[:2] == ["tasks", "queue"]


@pytest.mark.spec("X17")
def test_metrics_are_not_served_if_the_settings_say_so() -> None:
    assert "/metrics" in paths_of(KsanaServer(Settings()))
    assert "/metrics" not in paths_of(KsanaServer(Settings(metrics=MetricsSettings(enabled=False))))


@pytest.mark.spec("X18")
async def test_the_time_zone_rules_that_are_named_are_those_in_use() -> None:
    server = KsanaServer(Settings())
    assert server._core.api_settings.tzdata_version == rules_version()
    findings = {finding.name: finding for finding in await doctor.examine(Settings())}
    assert findings["time zones"].text == f"edition {rules_version()}"
