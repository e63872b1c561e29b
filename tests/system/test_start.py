"""What a start loads: a server that nobody asks anything of has only what it runs on.

Each package named here once cost every start some of its time and memory. Who needs one imports it
where it is first used.
"""

import subprocess
import sys
from pathlib import Path

from tests.ground.process import free_port

IDLE_WITHOUT = (
    *("starlette", "anyio"),  # with the first socket
    *("typer", "pydantic", "structlog", "rich", "pygments"),
    *("psycopg", "pymysql", "redis", "hiredis", "opentelemetry", "cryptography"),
    *("pip", "pkg_resources", "pytest", "unittest", "distutils"),
    "ksana.api.core.openapi",
    "ksana.api.core.openapi_schemas",
    *(
        f"ksana.api.{surface}.words"
        for surface in ("core", "tasks", "queue", "governance", "nodes")
    ),
    "ksana.boot.doctor",
    "ksana.client",
    "ksana.fabric.redis",
    "ksana.store.jsonfile",
    "ksana.store.sql.core.dialects.mysql",
    "ksana.store.sql.core.dialects.postgres",
    "ksana.store.sql.core.postgres_signals",
    "ksana.testing",
)
HELP_WITHOUT = ("asyncio", "msgspec", "ksana.boot", "ksana.api", "ksana.base", "uvicorn")

SERVE = """
import asyncio
import os
import sys

import ksana.boot.server as server
from ksana.cli.main import run

def look():
    print(*sys.modules)
    sys.stdout.flush()
    os._exit(0)

# Called when the server has come up; what its loops do first belongs to the start.
server.freeze_loaded = lambda: asyncio.get_running_loop().call_later(0.5, look)
run(["serve"])
"""
HELP = """
import sys

from ksana.cli.main import run

try:
    run(["--help"])
except SystemExit:
    print(*sys.modules)
"""


def modules_of(script: str, folder: Path) -> set[str]:
    """What is imported when this script ends."""
    env = {"KSANA_DATA": str(folder), "KSANA_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def within(loaded: set[str], names: tuple[str, ...]) -> list[str]:
    return sorted(one for one in loaded if one.startswith(tuple(f"{name}." for name in names))) + [
        name for name in names if name in loaded
    ]


def test_an_idle_server_on_sqlite_has_loaded_only_what_it_runs_on(tmp_path: Path) -> None:
    loaded = modules_of(SERVE, tmp_path)
    assert "ksana.store.sql.core.dialects.sqlite" in loaded
    assert not within(loaded, IDLE_WITHOUT)


def test_the_help_loads_no_command(tmp_path: Path) -> None:
    loaded = modules_of(HELP, tmp_path)
    assert "click" in loaded
    assert not within(loaded, HELP_WITHOUT)
