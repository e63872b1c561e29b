"""The documents: what is generated is current, what is linked exists, what is served is written
about."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ksana.api.queue.routes import BATCH_BODY
from ksana.boot.settings.sources import load
from ksana.boot.settings.table import TABLE
from ksana.cli.main import COMMANDS
from tests.ground import pages

ROOT, DOCS = pages.ROOT, pages.DOCS
USER_PAGES = ("README", "quickstart", "glossary", "timers", "tasks", "queue", "sdk")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
TOML = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
SETTING = re.compile(
    rf"`((?:{'|'.join({name.partition('.')[0] for name in TABLE})})\.[a-z_.]+)[^`]*`"
)
METRIC = re.compile(
    r"\b((?:ksana|cronjob|scheduler_phase2|jobs?|dead_letter|process)_[a-z0-9_]+)\b"
)
DERIVED = re.compile(r"_(bucket|sum|count)$")


def all_pages() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(path for path in pages if "node_modules" not in path.parts)


def hand_written() -> list[Path]:
    return [path for path in all_pages() if DOCS / "reference" not in path.parents]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def assert_none(found: list[str]) -> None:
    assert not found, "\n  " + "\n  ".join(found)


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get where it is usually read."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    heads = [line.lstrip("#").strip().lower() for line in text.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def test_what_is_generated_is_current() -> None:
    made = pages.generated()
    stale = [
        named(path)
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"{', '.join(stale)}: run make docs"


def test_the_size_of_a_batch_call_is_written_about() -> None:
    size = f"{BATCH_BODY // 2**20} MiB"
    pages = ("docs/queue.md", "docs/zh/queue.md", "docs/operate/security.md")
    assert_none([page for page in pages if size not in (ROOT / page).read_text(encoding="utf-8")])


def test_every_relative_link_leads_somewhere() -> None:
    broken = []
    for path in all_pages():
        for link in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
            if "://" in link or link.startswith("mailto:"):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.exists() or (
                anchor and target.suffix == ".md" and anchor not in anchors(target)
            ):
                broken.append(f"{named(path)}: {link}")
    assert_none(broken)


def test_every_page_can_be_reached_from_the_index() -> None:
    for index in (DOCS / "README.md", DOCS / "zh" / "README.md"):
        reached, waiting = set(), [index]
        while waiting:
            path = waiting.pop()
            if path in reached or path.suffix != ".md" or not path.exists():
                continue
            reached.add(path)
            links = LINK.findall(path.read_text(encoding="utf-8"))
            waiting += [
                (path.parent / link.partition("#")[0]).resolve()
                for link in links
                if "://" not in link
            ]
        inside = [path for path in index.parent.rglob("*.md") if path.name != "0000-template.md"]
        assert_none([named(path) for path in inside if path not in reached])


def test_every_endpoint_is_written_about_in_english_and_chinese() -> None:
    chinese = [path for path in hand_written() if DOCS / "zh" in path.parents]
    for written in (
        [path for path in hand_written() if path not in chinese],
        [*chinese, DOCS / "README.md"],
    ):
        text = "\n".join(path.read_text(encoding="utf-8") for path in written)
        silent = []
        for route in pages.list_routes():
            # An id may be written as a placeholder, a variable of the shell or an example.
            parts = [
                r"[^/\s`?\"']+" if part[:1] == "{" else re.escape(part)
                for part in pages.plain_path(route).split("/")
            ]
            if not re.search("/".join(parts) + r"(?![\w/{-])", text):
                silent.append(f"{route.method} {pages.plain_path(route)}")
        assert_none(silent)


def test_every_command_is_written_about() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in hand_written())
    assert_none([name for name in COMMANDS if not re.search(rf"ksana {name}\b", text)])


@pytest.mark.parametrize(
    "name", [*USER_PAGES, *(f"concepts/{path.stem}" for path in (DOCS / "concepts").glob("*.md"))]
)
def test_user_pages_exist_in_english_and_chinese(name: str) -> None:
    assert (DOCS / f"{name}.md").exists()
    chinese = DOCS / "zh" / f"{name}.md"
    assert chinese.exists()
    assert re.search(r"[一-鿿]", chinese.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("english", "chinese"),
    [("README.md", "README.zh-CN.md"), ("docs/quickstart.md", "docs/zh/quickstart.md")],
    ids=["readme", "quickstart"],
)
def test_commands_to_type_are_the_same_in_both_languages(english: str, chinese: str) -> None:
    assert SHELL.findall((ROOT / english).read_text()) == SHELL.findall(
        (ROOT / chinese).read_text()
    )


@pytest.mark.parametrize("page", ["operate/security.md", "operate/proxy.md"])
def test_an_operators_page_has_the_same_parts_in_both_languages(page: str) -> None:
    english, chinese = (DOCS / page).read_text(), (DOCS / "zh" / page).read_text()

    def blocks(text: str) -> list[str]:
        found = re.findall(r"^```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        return [re.sub(r" +# .*", "", block) for block in found]

    def settings(text: str) -> set[str]:
        return set(re.findall(r"`([a-z]+\.[a-z_]+)`", text))

    assert blocks(english) and blocks(english) == blocks(chinese)
    assert english.count("\n#") == chinese.count("\n#")
    assert settings(english) == settings(chinese)


def test_configuration_that_is_shown_is_understood(tmp_path: Path) -> None:
    shown = [
        block for path in hand_written() for block in TOML.findall(path.read_text(encoding="utf-8"))
    ]
    assert shown
    for block in shown:
        (tmp_path / "ksana.toml").write_text(block)
        loaded = load({}, {}, str(tmp_path / "ksana.toml"))
        assert loaded.warnings == () or loaded.warnings == []


def test_settings_that_are_named_exist() -> None:
    unknown = []
    for path in [
        *ROOT.glob("README*.md"),
        *DOCS.rglob("concepts/*.md"),
        *DOCS.rglob("operate/*.md"),
        *DOCS.glob("adr/*.md"),
    ]:
        for name in SETTING.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
            if name not in TABLE:
                unknown.append(f"{named(path)}: {name}")
    assert_none(unknown)


def test_the_grid_has_every_module_in_one_cell_and_no_other() -> None:
    shown: Counter[tuple[str, str, str]] = Counter()
    columns: list[str] = []
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "floor":
            columns = [cell.partition(" ")[0] for cell in cells[1:]]
        elif columns and not line.startswith("|"):
            break
        elif columns and cells[0].startswith("`"):
            floor = cells[0].strip("`")
            for column, cell in zip(columns, cells[1:], strict=True):
                shown.update((floor, column, name) for name in cell.strip("`").split())
    assert shown == Counter(pages.place_of(path) for path in pages.list_modules())
    assert not [cell for cell, count in shown.items() if count > 1]


def test_every_kind_of_event_is_on_the_page_of_events() -> None:
    page = (DOCS / "reference" / "events.md").read_text()
    kinds = [kind for group in pages.event_kinds().values() for kind in group]
    assert kinds
    assert_none([kind.name for kind in kinds if f"| `{kind.name}` | {kind.entity} |" not in page])


def test_dashboard_and_alerts_name_metrics_that_are_written_about() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/ksana.json").read_text())
    panels = [inner for panel in dashboard["panels"] for inner in (panel, *panel.get("panels", []))]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    expressions += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    told = set(METRIC.findall((DOCS / "operate/metrics.md").read_text()))
    used = {
        DERIVED.sub("", name) if name not in told else name
        for text in expressions
        for name in METRIC.findall(text)
    }
    assert len(used) > 20
    assert_none(sorted(used - told))
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = (DOCS / "adr/README.md").read_text()
    assert_none(
        [path.name for path in (DOCS / "adr").glob("0*.md") if f"({path.name})" not in listed]
    )
