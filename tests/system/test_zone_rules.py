"""The real program is started again with another edition of the zone rules, on every store: a task
of a zone whose rules changed is due at its local time by the new ones."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.tasks import Json, make_task

ZONE = "America/Sao_Paulo"
NEW_RULES = "Asia/Kathmandu"


@pytest.fixture
def new_edition(tmp_path: Path) -> Path:
    """A folder with the package of rules, in which one zone has another's."""
    folder = tmp_path / "rules"
    old = Path(str(import_module("tzdata").__file__)).parent
    copy = shutil.copytree(old, folder / "tzdata")
    shutil.copyfile(copy.joinpath("zoneinfo", *NEW_RULES.split("/")), copy / "zoneinfo" / ZONE)
    init = copy / "__init__.py"
    text = init.read_text("utf-8")
    edition = str(import_module("tzdata").IANA_VERSION)
    init.write_text(text.replace(f'"{edition}"', '"2099z"'), "utf-8")
    return folder


@pytest.fixture(params=["sqlite", "json", "mariadb", "postgres"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    name = None
    if request.param in ("sqlite", "json"):
        store = f"json:///{tmp_path / 'data'}" if request.param == "json" else None
    else:
        server = request.getfixturevalue(request.param)
        name = server.create_database()
        store = server.url(name)
    with Program(tmp_path / "data", store=store) as program:
        yield program.start()
    if name is not None:
        server.drop_database(name)


def next_slot(program: Program, task: Json) -> datetime:
    at = program.get(f"/api/v1/tasks/{task['id']}").json()["next_run_at"]
    return datetime.fromisoformat(at)


@pytest.mark.fault("F24")
@pytest.mark.spec("X5")
def test_slots_follow_the_rules_that_came_with_a_new_edition(
    program: Program, new_edition: Path
) -> None:
    schedule = {"kind": "cron", "expr": "0 9 * * *", "timezone": ZONE}
    task = make_task(program, "nine", "http://127.0.0.1:9/", schedule=schedule)
    beside = make_task(
        program, "utc", "http://127.0.0.1:9/", schedule={"kind": "cron", "expr": "0 9 * * *"}
    )
    before, same = next_slot(program, task), next_slot(program, beside)
    program.terminate()
    program.env["PYTHONPATH"] = str(new_edition)
    program.start()
    assert program.get("/api/v1/version").json()["tzdata"] == "2099z"
    wait_for(lambda: next_slot(program, task) != before, "the slot moves", within_s=15)
    local = next_slot(program, task).astimezone(ZoneInfo(NEW_RULES))
    assert (local.hour, local.minute) == (9, 0)
    assert next_slot(program, task) > datetime.now(UTC)
    assert next_slot(program, beside) == same
