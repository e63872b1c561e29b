"""The files around the code: what they name exists."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_workflows_name_targets_that_exist() -> None:
    steps = [
        step
        for path in WORKFLOWS
        for job in load(path)["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    named = {name for step in steps for name in re.findall(r"\bmake ([a-z]+)", step["run"])}
    assert {"test", "check", "quick", "dist"} <= named
    assert named <= targets()


def test_the_versions_of_python_that_are_tried_are_those_that_are_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    tried = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["quick"]["strategy"]["matrix"]
    assert tried["python"] == promised
    assert project["requires-python"] == f">={promised[0]}"


def test_hooks_before_a_commit_use_the_tools_of_the_project() -> None:
    hooks = [
        hook
        for repo in load(ROOT / ".pre-commit-config.yaml")["repos"]
        for hook in repo["hooks"]
        if repo["repo"] == "local"
    ]
    assert {hook["entry"].split()[0] for hook in hooks} == {
        ".venv/bin/ruff",
        ".venv/bin/mypy",
        ".venv/bin/lint-imports",
        ".venv/bin/pytest",
    }
    assert all(hook["language"] == "system" for hook in hooks)


def test_forms_for_issues_can_be_read() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        if path.name != "config.yml":
            form = load(path)
            assert {"name", "description", "body"} <= set(form)
