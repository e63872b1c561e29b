"""What tests stand on: processes, programs, targets and virtual time."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import settings

from ksana.base.clock import VirtualClock
from tests.ground import contract, profiles
from tests.ground import target as behaviours
from tests.ground.child import Child, ChildError, is_port_free, wait_for
from tests.ground.conformance import missing_items, summary, table
from tests.ground.process import Program, clean_environment
from tests.ground.redis import Redis
from tests.ground.server import MissingServerError, obtain
from tests.ground.target import Target
from tests.ground.virtual import DAY, SECOND, eventually, finish, next_deadline


def test_a_missing_server_skips_at_a_desk_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Redis:
        raise MissingServerError("no-such-server is not installed")

    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="MISSING SERVER: no-such-server"):
        obtain(make)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="MISSING SERVER: no-such-server"):
        obtain(make)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a leash for orphans")
def test_a_child_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import pathlib, sys, time\nfrom tests.ground.child import Child\n"
        f"child = Child(['sleep', '1000'], pathlib.Path({str(tmp_path / 'log')!r}))\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid) + '\\n')\ntime.sleep(1000)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    wait_for(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "the child runs")
    pid = int(pid_file.read_text())
    wait_for(
        lambda: Path(f"/proc/{pid}/comm").read_text().strip() == "sleep",
        "the leash gave way to the command",
    )
    starter.kill()
    starter.wait()
    wait_for(
        lambda: not Path(f"/proc/{pid}").exists() or ") Z" in Path(f"/proc/{pid}/stat").read_text(),
        "the child ends",
    )


def test_a_child_is_killed_with_all_below_it(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "sleep 1000 & sleep 1000"], tmp_path / "log")
    wait_for(lambda: len(child.family()) == 3, "both sleepers run")
    family = child.family()
    assert child.kill() == -signal.SIGKILL
    for pid in family[1:]:
        wait_for(lambda pid=pid: not _is_alive(pid), "a sleeper ends")  # type: ignore[misc]


def _is_alive(pid: int) -> bool:
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return bool(listed) and not listed.startswith("Z")


def test_the_program_gets_no_setting_from_the_developers_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KSANA_STORE", "mysql://production/x")
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert {"KSANA_STORE", "PORT", "HTTP_PROXY"} & set(clean_environment()) == set()


STAND_IN = """
import http.server, os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
data = pathlib.Path(os.environ["KSANA_DATA"], "starts")
data.write_text(data.read_text() + "x" if data.exists() else "x")
print("started", sys.argv[1:], flush=True)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
        self.wfile.write(data.read_bytes())
http.server.HTTPServer((os.environ["KSANA_HOST"], int(os.environ["PORT"])), Page).serve_forever()
"""


class TestProgram:
    """The harness of the real process, shown on a stand-in for it."""

    @pytest.fixture
    def stand_in(self, tmp_path: Path) -> Iterator[Program]:
        with Program(
            tmp_path / "data", command=[sys.executable, "-c", STAND_IN], args=["--flag"]
        ) as program:
            yield program

    def test_it_comes_back_on_its_port_and_data_after_kill_and_after_terminate(
        self, stand_in: Program
    ) -> None:
        assert stand_in.start().get("/readyz").text == "x"
        stand_in.kill9()
        assert not stand_in.is_running
        assert stand_in.start().get("/readyz").text == "xx"
        assert stand_in.terminate() == 0
        assert stand_in.start().restart().get("/readyz").text == "xxxx"
        stand_in.wait_for_log("started ['--flag']")

    def test_a_program_that_ends_at_once_fails_the_start_with_its_log(self, tmp_path: Path) -> None:
        with Program(tmp_path / "data", command=["sh", "-c", "echo no disk; exit 3"]) as program:
            with pytest.raises(ChildError, match="ended with 3\nno disk"):
                program.start()
            assert program.wait_for_end() == 3

    def test_a_paused_program_answers_after_it_is_resumed(self, stand_in: Program) -> None:
        stand_in.start().pause()
        with pytest.raises(httpx.ReadTimeout):
            stand_in.get("/readyz", timeout=0.2)
        stand_in.resume()
        assert stand_in.get("/readyz").status_code == 200


class TestTarget:
    """Recording, and each kind of bad answer."""

    def post(self, target: Target, path: str, timeout_s: float = 5) -> httpx.Response:
        return httpx.post(
            target.url(path),
            content=b"body",
            headers={"X-Mark": "7"},
            timeout=timeout_s,
            trust_env=False,
        )

    def test_it_records_what_arrived(self, target: Target) -> None:
        assert self.post(target, "/a?x=1").json() == {}
        [request] = target.requests("/a")
        assert (request.method, request.query, request.headers["x-mark"], request.body) == (
            "POST",
            "x=1",
            "7",
            b"body",
        )
        assert abs(request.at - time.time_ns() // 1000) < 60 * SECOND

    def test_it_reads_chunked_bodies_and_keeps_connections(self, target: Target) -> None:
        with httpx.Client(trust_env=False) as client:
            client.post(target.url("/a"), content=iter([b"one", b"two"]))
            client.post(target.url("/b"), content=b"x" * 300_000)
        assert [len(request.body) for request in target.requests()] == [6, 300_000]
        assert target.connections == 1

    def test_behaviours_follow_one_another_and_the_last_one_stays(self, target: Target) -> None:
        target.on("/flaky", behaviours.Answer(500), behaviours.Answer(201, b"made", {"X-A": "b"}))
        answers = [self.post(target, "/flaky") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [500, 201, 201]
        assert (answers[2].content, answers[2].headers["x-a"]) == (b"made", "b")

    def test_a_behaviour_may_depend_on_the_request(self, target: Target) -> None:
        target.on("/echo", lambda request: behaviours.Answer(200, request.body))
        assert self.post(target, "/echo").content == b"body"

    def test_it_redirects(self, target: Target) -> None:
        target.on("/from", behaviours.redirect("/to", 307))
        answer = self.post(target, "/from")
        assert (answer.status_code, answer.headers["location"]) == (307, "/to")

    @pytest.mark.parametrize(
        ("behaviour", "error"),
        [
            (behaviours.Hang(), httpx.ReadTimeout),
            (behaviours.Reset(), httpx.ReadError),
            (behaviours.Garbage(), httpx.RemoteProtocolError),
            (behaviours.CloseEarly(), httpx.RemoteProtocolError),
        ],
    )
    def test_it_misbehaves_exactly(
        self, target: Target, behaviour: behaviours.Behaviour, error: type[Exception]
    ) -> None:
        target.on("/bad", behaviour)
        with pytest.raises(error):
            self.post(target, "/bad", timeout_s=0.3)
        assert len(target.requests("/bad")) == 1

    @pytest.mark.parametrize("is_chunked", [False, True])
    def test_it_sends_huge_answers(self, target: Target, is_chunked: bool) -> None:
        target.on("/huge", behaviours.Huge(3_000_000, is_chunked=is_chunked))
        assert len(self.post(target, "/huge").content) == 3_000_000

    def test_it_drips(self, target: Target) -> None:
        target.on("/drip", behaviours.Drip(b"abc", every_ms=20))
        began = time.monotonic()
        assert self.post(target, "/drip").content == b"abc"
        assert time.monotonic() - began >= 0.04

    async def test_it_holds_an_answer_until_released(self, target: Target) -> None:
        hold = behaviours.Hold(behaviours.Answer(202))
        target.on("/held", hold)
        call = asyncio.create_task(asyncio.to_thread(self.post, target, "/held"))
        await target.until(1, "/held")
        assert not call.done()
        hold.release()
        assert (await call).status_code == 202

    def test_too_few_requests_are_an_error_with_the_count(self, target: Target) -> None:
        with pytest.raises(ChildError, match="0 of 1"):
            target.wait_for(1, within_s=0.01)


class TestVirtualTime:
    async def test_a_year_passes_at_once(self, clock: VirtualClock) -> None:
        began = clock.now()

        async def sleep_daily() -> int:
            for day in range(1, 366):
                await clock.sleep_until(began + day * DAY)
            return 365

        assert await finish(clock, sleep_daily()) == 365
        assert clock.now() == began + 365 * DAY

    async def test_work_that_takes_too_long_in_virtual_time_fails(
        self, clock: VirtualClock
    ) -> None:
        with pytest.raises(AssertionError, match="virtual time"):
            await finish(clock, clock.sleep_until(clock.now() + 2 * DAY), within_us=DAY)

    async def test_time_stands_still_while_a_thread_works(self, clock: VirtualClock) -> None:
        began = clock.now()
        done = []
        assert await finish(clock, asyncio.to_thread(lambda: done.append(1) or "done")) == "done"
        await eventually(lambda: done)
        assert (clock.now(), next_deadline(clock)) == (began, None)


def test_free_ports_are_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not is_port_free(taken.getsockname()[1])


def test_the_profile_of_ci_gives_the_same_examples_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settings.get_profile("ci").derandomize
    assert settings.get_profile("ci").print_blob
    current = settings.get_current_profile_name()
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "ci")
    assert profiles.load() == "ci"
    settings.load_profile(current)


def test_the_conformance_table_counts_and_names_what_is_missing() -> None:
    proofs = {"X6": ["tests/a.py::test_b[1]", "tests/a.py::test_b[2]"]}
    assert "X6         2\n         tests/a.py::test_b\n" in table(proofs, has_names=True)
    assert "X everywhere   1 of 23" in summary(proofs)
    assert "X6" not in missing_items(proofs, ["X"])
    assert len(missing_items(proofs, ["X"])) == 22
    assert len(contract.ITEMS) == 23 + 24 + 23 + 16 + 14 + 15 + 14


@pytest.mark.spec("X1", "X14")
def test_the_real_program_is_killed_comes_back_and_ends_in_good_order(program: Program) -> None:
    assert program.start().get("/health").status_code == 200
    program.kill9()
    program.start()
    assert program.get("/readyz").status_code == 200
    assert program.terminate() == 0
