"""Hostile targets through the real server: each is recorded in one clear line and holds nobody else
up."""

import statistics
from collections.abc import Iterator

import pytest

from tests.ground.process import Program
from tests.ground.target import (
    Behaviour,
    CloseEarly,
    Drip,
    Garbage,
    Hang,
    Huge,
    Request,
    Reset,
    Target,
    redirect,
)
from tests.ground.tasks import (
    FULL,
    SECOND,
    disable,
    instant_of,
    make_task,
    note_figures,
    trigger,
    wait_for_run,
)

LATE_S = 1.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """One server for all targets of this page."""
    with Program(tmp_path_factory.mktemp("targets")) as program:
        yield program.start()


@pytest.fixture
def healthy() -> Iterator[Target]:
    """Another host, which answers at once."""
    with Target() as target:
        yield target


def lateness_of(requests: list[Request]) -> list[float]:
    """How late each request came, in seconds."""
    return sorted(
        (request.at - instant_of(request.headers["x-ksana-scheduled-at"])) / SECOND
        for request in requests
    )


def describe(late: list[float]) -> str:
    median_ms, p99_ms, worst_ms = (
        1000 * value for value in (statistics.median(late), percentile(late, 0.99), late[-1])
    )
    return (
        f"{len(late)} calls, late by {median_ms:.1f} ms (median), "
        f"{p99_ms:.1f} ms (p99), {worst_ms:.1f} ms (worst)"
    )


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


HOSTILE: dict[str, tuple[Behaviour, str, str]] = {
    "/hang": (Hang(), "TIMEOUT", "no answer within 1s"),
    "/drip": (Drip(), "TIMEOUT", "no whole answer within 1s"),
    "/reset": (Reset(), "FAILED", "connection reset"),
    "/garbage": (Garbage(), "FAILED", "not HTTP"),
    "/early": (CloseEarly(), "FAILED", "cut short after 4 bytes"),
    "/round": (redirect("/round"), "FAILED", "HTTP 302"),
    "/huge": (Huge(512 * 1024 * 1024), "SUCCESS", ""),
}


@pytest.mark.fault("F54")
@pytest.mark.spec("T11", "T12", "T14", "X13", "X20")
def test_hostile_targets_are_recorded_in_one_line_and_hold_nobody_up(
    program: Program, target: Target, healthy: Target
) -> None:
    pulse = make_task(program, "pulse", healthy.url("/pulse"), "100ms")
    runs = {}
    for path, (behaviour, *_) in HOSTILE.items():
        target.on(path, behaviour)
        task = make_task(program, path, target.url(path), timeout_seconds=1, follow_redirects=3)
        runs[path] = trigger(program, task)
    ended = {path: wait_for_run(program, run_id) for path, run_id in runs.items()}
    healthy.wait_for(30, "/pulse")
    disable(program, [pulse])
    for path, run in ended.items():
        _, status, words = HOSTILE[path]
        line = run["error_message"] or ""
        assert run["status"] == status, (path, run)
        assert words in line, (path, line)
        assert len(line.splitlines()) <= 1
        took_s = (instant_of(run["end_time"]) - instant_of(run["start_time"])) / SECOND
        assert took_s < 5, (path, took_s)
    assert ended["/huge"]["response_truncated"]
    assert len(ended["/huge"]["response_body"]) <= 64 * 1024
    assert len(target.requests("/round")) == 4, "three redirects are followed, no more"
    late = lateness_of(healthy.requests("/pulse"))
    assert percentile(late, 0.99) < LATE_S, late[-5:]


@pytest.mark.spec("X20")
def test_a_redirect_is_followed_only_if_the_task_says_so(program: Program, target: Target) -> None:
    target.on("/from", redirect("/to"))
    staying = trigger(program, make_task(program, "staying", target.url("/from")))
    assert wait_for_run(program, staying)["error_message"] == "HTTP 302 Found"
    assert not target.requests("/to")
    going = trigger(program, make_task(program, "going", target.url("/from"), follow_redirects=1))
    assert wait_for_run(program, going)["status"] == "SUCCESS"
    assert len(target.requests("/to")) == 1


@pytest.mark.spec("X20")
def test_the_metadata_address_is_refused_directly_and_behind_a_redirect(
    program: Program, target: Target
) -> None:
    target.on("/to-metadata", redirect("http://169.254.169.254/latest/meta-data/"))
    retry = {"max_retries": 2, "initial_delay": 0}
    urls = {
        "direct": "http://169.254.169.254/latest/meta-data/",
        "mapped": "http://[::ffff:169.254.169.254]/",
        "decimal": "http://2852039166/",
        "redirected": target.url("/to-metadata"),
    }
    for name, url in urls.items():
        answer = program.post(
            "/api/v1/tasks",
            {
                "name": name,
                "target_url": url,
                "cron_expr": "0 0 1 1 *",
                "follow_redirects": 2,
                "retry_policy": retry,
            },
        )
        if answer.status_code == 400:
            assert name != "redirected"
            assert answer.json()["field"] == "target_url"
            continue
        assert answer.status_code == 201, answer.text
        run = wait_for_run(program, trigger(program, answer.json()))
        assert (run["status"], run["attempt"]) == ("FAILED", 1), "refused is refused: no second try"
        assert "169.254.169.254" in run["error_message"], run["error_message"]
        assert "not called" in run["error_message"], run["error_message"]


HOSTS = 100
HANG_S, WATCHED_S = (3, 30) if FULL else (2, 8)


@pytest.mark.fault("F16")
@pytest.mark.spec("T14", "C22")
def test_with_nine_of_ten_targets_hanging_the_healthy_tenth_stays_on_time(program: Program) -> None:
    with Target(bind="0.0.0.0") as target:
        target.on("/hang", Hang())
        tasks = []
        for n in range(HOSTS):  # each address is a host of its own
            is_healthy = n % 10 == 0
            url = f"http://127.0.1.{n + 1}:{target.port}{'/well' if is_healthy else '/hang'}"
            tasks.append(
                make_task(
                    program,
                    f"t{n}",
                    url,
                    "1s",
                    timeout_seconds=HANG_S,
                    concurrency_policy="PARALLEL",
                    misfire_grace=600,
                )
            )
        target.wait_for(HOSTS // 10 * WATCHED_S, "/well", within_s=WATCHED_S * 5)
        disable(program, tasks)
        late = lateness_of(target.requests("/well"))
        note_figures(f"90 of 100 hosts hang for {HANG_S} s", describe(late))
        assert percentile(late, 0.99) < LATE_S, late[-10:]


@pytest.mark.spec("C22")
def test_at_light_load_a_slot_is_called_within_milliseconds_and_never_early(
    program: Program, target: Target
) -> None:
    tasks = [make_task(program, f"light{n}", target.url("/slot"), "500ms") for n in range(10)]
    target.wait_for(200 if FULL else 100, "/slot", within_s=60)
    disable(program, tasks)
    late = lateness_of(target.requests("/slot"))
    note_figures("light load on SQLite", describe(late))
    assert late[0] >= 0, "early"
    assert percentile(late, 0.9) <= 0.25  # of so few the worst are the machine's luck
