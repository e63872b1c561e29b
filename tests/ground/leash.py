"""Run a command that dies with whoever started it: `python leash.py [--user NAME] -- command …`.

The command takes this process's place, so its pid is the one the starter knows. On Linux the kernel
kills it when the starter is gone, even by kill -9. A separate program, because work between fork
and exec is unsafe in a threaded parent.
"""

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(name: str) -> None:
    """Drop root for `name`. Databases refuse to run as root."""
    entry = pwd.getpwnam(name)
    os.initgroups(name, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["HOME"] = entry.pw_dir


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it is gone. Elsewhere than on
    Linux: nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    options, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    starter = int(options[options.index("--starter") + 1])
    if "--user" in options:
        become(options[options.index("--user") + 1])
    die_with_parent()  # after the change of user, which clears it
    if os.getppid() != starter:
        sys.exit("the starter is gone already")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
