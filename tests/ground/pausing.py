"""The real program with an interpreter that stops for a while: on SIGUSR2, for as many seconds as
PAUSE_S says. PAUSE_KIND `loop`: the thread of the event loop is blocked and the others run on, as
by a call that should not have been made there. `interpreter`: the interpreter's lock is held and
nothing of Python runs, as in a long garbage collection. Connections go on in the kernel either way.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

PauseKind = Literal["loop", "interpreter"]

PAUSING = (sys.executable, "-P", str(Path(__file__)), "serve")
"""The command, for a `Program`."""


def pause_environment(kind: PauseKind, pause_s: int) -> dict[str, str]:
    return {"PAUSE_KIND": kind, "PAUSE_S": str(pause_s)}


def _pause(*_: object) -> None:
    pause_s = int(os.environ["PAUSE_S"])
    os.write(2, b"the pause begins\n")
    if os.environ["PAUSE_KIND"] == "interpreter":
        ctypes.PyDLL(None).sleep(pause_s)  # PyDLL, unlike CDLL, keeps the lock
    else:
        time.sleep(pause_s)
    os.write(2, b"the pause is over\n")


if __name__ == "__main__":
    from ksana.cli.main import run

    signal.signal(signal.SIGUSR2, _pause)
    run()
