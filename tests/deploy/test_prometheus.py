"""The alert rules and the dashboard that are shipped: every rule fires when it should and keeps
quiet when it should, judged by Prometheus's own tool, over metrics that a real server serves."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.server import need_program

pytestmark = pytest.mark.spec("X17")

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES, CASES = DEPLOY / "prometheus/alerts.yml", DEPLOY / "prometheus/alerts_test.yml"
METRIC = re.compile(r"\b(?:ksana|cronjob|scheduler_phase2|process|jobs?|dead_letter)_[a-z0-9_]+\b")
SUFFIX = re.compile(r"_(bucket|sum|count|total)$")


def load_rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = need_program("promtool")
    return subprocess.run(
        [program, *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    checked = promtool("check", "rules", RULES.name, cwd=RULES.parent)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", CASES.name, cwd=CASES.parent)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    firing, quiet = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            (firing if check["exp_alerts"] else quiet).add(check["alertname"])
    assert firing == quiet == set(load_rules())


@pytest.mark.parametrize("broken", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_a_rule_that_fires_never_or_always_is_noticed(broken: str, tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = broken
    (tmp_path / RULES.name).write_text(yaml.safe_dump(rules))
    shutil.copy(CASES, tmp_path)
    tested = promtool("test", "rules", CASES.name, cwd=tmp_path)
    assert tested.returncode == 1
    noticed = re.findall(r"alertname: (\w+),", tested.stdout + tested.stderr)
    assert set(noticed) == set(load_rules())


def test_alerts_and_dashboard_use_metrics_that_a_server_serves(program: Program) -> None:
    program.start()
    dashboard = json.loads((DEPLOY / "grafana/ksana.json").read_text())
    panels = [inner for panel in dashboard["panels"] for inner in (panel, *panel.get("panels", []))]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    expressions += [rule["expr"] for rule in load_rules().values()]
    used = {name for text in expressions for name in METRIC.findall(text)}
    assert len(used) > 40

    def list_missing() -> list[str]:
        text = program.get("/metrics").text
        families = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
        return sorted(name for name in used if not {name, SUFFIX.sub("", name)} & families)

    wait_for(lambda: not list_missing(), f"all are served, but for {list_missing()}")
