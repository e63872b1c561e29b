"""What a platform lacks must not stop the start (X23): modules of Unix, and uvloop."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ground.process import Program, clean_environment
from tests.ground.target import Target

HIDE = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ImportError(f"{name} does not exist on this platform")

sys.meta_path.insert(0, Hidden())
for name in list(sys.modules):
    if name.partition(".")[0] in HIDDEN:
        del sys.modules[name]
"""
"""Makes the modules named in HIDDEN impossible to import."""

AS_ON_WINDOWS = """
import pkgutil, sys, types
import ksana

def names():
    found = [each.name for each in pkgutil.walk_packages(ksana.__path__, "ksana.")]
    return ["ksana", *(name for name in found if name != "ksana.__main__")]

# First as we are here: what ksana stands on may look at the platform too, and cannot be lied to.
mine = names()
for name in mine:
    __import__(name)
for name in list(sys.modules):
    if name.partition(".")[0] == "ksana":
        del sys.modules[name]

HIDDEN = {"uvloop", "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "curses"}
%s
msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK, msvcrt.locking = 2, lambda handle, mode, size: None
sys.modules["msvcrt"] = msvcrt
sys.platform = "win32"
for name in mine:
    __import__(name)
assert len(mine) > 100, mine
assert sys.modules["ksana.store.sql.core.sqlite_file"].msvcrt is msvcrt
import asyncio
# Calls need a loop that watches sockets.
assert sys.modules["ksana.cli.serve"]._loop_factory() is asyncio.SelectorEventLoop
sys.stdout.write(f"{len(mine)} modules")
"""

WITHOUT_UVLOOP = f"""
HIDDEN = {{"uvloop"}}
{HIDE}
import asyncio
from ksana.boot import server

begin = server.serve

async def serve(settings, *more):
    loop = type(asyncio.get_running_loop())
    sys.stderr.write(f"the loop is of {{loop.__module__}}\\n")
    return await begin(settings, *more)

server.serve = serve
from ksana.cli.main import run

sys.argv[1:] = ["serve"]
run()
"""


@pytest.mark.spec("X23")
def test_every_module_can_be_imported_where_the_modules_of_unix_are_missing() -> None:
    code = AS_ON_WINDOWS % HIDE
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "modules" in done.stdout


@pytest.mark.spec("X23")
@pytest.mark.parametrize("scheme", ["sqlite", "json"])
def test_without_uvloop_it_serves_and_fires_on_the_plain_loop(
    tmp_path: Path, target: Target, scheme: str
) -> None:
    store = f"{scheme}:///{tmp_path / 'store'}"
    with Program(
        tmp_path / "data", store=store, command=(sys.executable, "-c", WITHOUT_UVLOOP)
    ) as program:
        program.start()
        assert "the loop is of asyncio." in program.log_text()
        assert program.get("/health").text == "ok"
        run_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
        timer = {
            "http": {"url": target.url("/tick")},
            "schedule": {"kind": "once", "run_at": run_at},
        }
        assert program.post("/jobs", timer).status_code == 201
        target.wait_for(1, "/tick")
        assert program.terminate() == 0
        assert "Traceback" not in program.log_text()
