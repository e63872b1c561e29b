"""The real program in a process of its own: start, ask, read its log, terminate, kill -9, and start
again.

with Program(tmp_path) as program:
    program.start()
    assert program.get("/health").status_code == 200
    program.kill9()
    program.start()        # same port, same data
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from tests.ground.child import Child, ChildError, free_port, wait_for

SERVE = (sys.executable, "-m", "ksana", "serve")

OWN_VARIABLES = (
    "PORT",
    "DATA_DIR",
    "WORKERS",
    "DEFAULT_TIMEOUT",
    "MAX_RETRIES",
    "RETRY_BACKOFF",
    "LOG_LEVEL",
)
"""Settings that a developer's shell must not lend to the program under test (and all of KSANA_* and
OTEL_*)."""


def clean_environment() -> dict[str, str]:
    """The environment without any setting of ours, and without a proxy between us and loopback."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in OWN_VARIABLES
        and not name.startswith(("KSANA_", "OTEL_"))
        and not name.lower().endswith("_proxy")
    }


class Program:
    """`ksana serve`, on one port and one data folder for its whole life."""

    def __init__(
        self,
        data_dir: Path,
        *,
        store: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        prefix: Sequence[str] = (),
        command: Sequence[str] = SERVE,
        port: int | None = None,
    ) -> None:
        """`prefix` goes before the command: strace, faketime. `args` after it."""
        data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir
        self.host = "127.0.0.1"
        self.port = port or free_port()
        self.log = data_dir / "program.log"
        self.args = list(args)
        self.prefix = list(prefix)
        self.command = list(command)
        self.env = {
            **clean_environment(),
            "KSANA_HOST": self.host,
            "PORT": str(self.port),
            "KSANA_DATA": str(data_dir),
            "PYTHONUNBUFFERED": "1",
            **({"KSANA_STORE": store} if store else {}),
            **(env or {}),
        }
        self._child: Child | None = None
        self.client = httpx.Client(base_url=self.url(), timeout=30, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, path: str = "") -> str:
        return f"http://{self.host}:{self.port}{path}"

    @property
    def pid(self) -> int:
        assert self._child is not None, "the program was not started"
        return self._child.pid

    @property
    def program_pid(self) -> int:
        """The program itself: under a prefix it may be a child."""
        assert self._child is not None
        return self._child.family()[-1] if self.prefix else self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running()

    def start(self, *, until: str | None = "/readyz", within_s: float = 30.0) -> Self:
        """Start it and wait until `until` answers 200; with None only until the process exists."""
        assert not self.is_running, "the program is running already"
        self._child = Child(
            [*self.prefix, *self.command, *self.args], self.log, env=self.env, cwd=self.data_dir
        )
        if until is not None:
            self.wait_until(until, within_s=within_s)
        return self

    def wait_until(self, path: str = "/readyz", status: int = 200, within_s: float = 30.0) -> None:
        """Wait until `path` answers `status`; if the program ends first, fail with its log."""
        try:
            wait_for(
                lambda: not self.is_running or self._answers(path, status),
                f"{path} answers {status}",
                within_s=within_s,
            )
        except ChildError as error:
            raise ChildError(f"{error}\n{self.log_text()[-4000:]}") from None
        if not self.is_running:
            assert self._child is not None
            raise ChildError(
                f"the program ended with {self._child.exit_code()}\n{self.log_text()[-4000:]}"
            )

    def _answers(self, path: str, status: int) -> bool:
        try:
            return self.client.get(path, timeout=2).status_code == status
        except httpx.HTTPError:
            return False

    def wait_for_end(self, within_s: float = 30.0) -> int:
        """Wait until it ends by itself and tell the exit code."""
        assert self._child is not None
        return self._child.wait(within_s)

    def terminate(self, within_s: float = 30.0) -> int:
        """SIGTERM, and the exit code. Not ending in time is an error."""
        self.send(signal.SIGTERM)
        return self.wait_for_end(within_s)

    def kill9(self) -> None:
        """kill -9 and reap."""
        if self._child is not None:
            self._child.kill()

    def send(self, number: int) -> None:
        assert self._child is not None
        # Under a prefix the program is a child of strace; the last of the family is the program
        # itself.
        os.kill(self._child.family()[-1] if self.prefix else self._child.pid, number)

    def pause(self) -> None:
        """SIGSTOP: the zombie that wakes up later."""
        assert self._child is not None
        self._child.pause()

    def resume(self) -> None:
        assert self._child is not None
        self._child.resume()

    def restart(self, *, until: str | None = "/readyz") -> Self:
        """Terminate in good order and start again."""
        self.terminate()
        return self.start(until=until)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for_log(self, text: str, within_s: float = 10.0) -> None:
        """Wait until the log, over all starts, contains `text`."""
        wait_for(lambda: text in self.log_text(), f"{text!r} in the log", within_s=within_s)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.client.post(path, json=json, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.client.request(method, path, **options)

    def close(self) -> None:
        self.kill9()
        self.client.close()


def run_cli(
    *args: str, env: Mapping[str, str] | None = None, cwd: Path, within_s: float = 60.0
) -> tuple[int, str]:
    """Run `ksana …` to its end; the exit code and all it printed."""
    log = cwd / f"cli-{os.getpid()}-{len(list(cwd.glob('cli-*')))}.log"
    child = Child(
        [sys.executable, "-m", "ksana", *args],
        log,
        env={**clean_environment(), **(env or {})},
        cwd=cwd,
    )
    try:
        return child.wait(within_s), log.read_text(errors="replace")
    finally:
        child.kill()
