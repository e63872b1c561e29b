"""The recorder: outcomes are gathered, written together, kept while the store is down, and told to
whoever observes them; one that cannot be written takes no other with it."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import MILLISECOND
from ksana.domain.tasks.call_records import read_attempts
from ksana.domain.tasks.changes import AttemptRecord
from ksana.engine.core.pump import AGAIN
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.recorder import (
    BUSY,
    BUSY_INTERVAL,
    MAX_OUTCOMES,
    MIN_INTERVAL,
    Recorded,
    Recorder,
    entry_of,
    log_failures,
    record_outcomes,
)
from ksana.ports.caller import Reply, Request, Timing
from tests.ground.logs import capture_logs
from tests.unit.delivery_ground import Parts, a_called_task, a_claim, answered, is_signalled, step
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import NOW

NOTHING = Recorded(set(), False, [], 0)


def over(run_id: int, reply: Reply | None = None, **members: Any) -> AttemptOver:
    request = Request("GET", "http://a/")
    return AttemptOver(
        a_claim(run_id, **members), request, "{}", reply or answered(), NOW, NOW + 2500
    )


class Ground(Parts):
    """A recorder that writes the watermark of a dispatcher."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.told: list[Recorded] = []
        self.recorder = Recorder(
            self.store,  # type: ignore[arg-type]
            clock,
            "me",
            (self,),
            self.dispatcher.watermark,
            self.told.append,
        )

    def add(self, *run_ids: int) -> None:
        for run_id in run_ids:
            self.recorder.add(over(run_id))

    def batches(self) -> list[list[int]]:
        """The runs of each batch that the store was asked to take."""
        return [[one.held.run_id for one in args[0]] for _, args in self.store.asked]

    async def step(self) -> int | None:
        return await step(self.recorder.pump)


@pytest.fixture
def ground(clock: VirtualClock) -> Ground:
    return Ground(clock)


def test_the_first_outcome_wakes_the_loop_and_those_after_it_wait_for_it(ground: Ground) -> None:
    ground.add(1)
    assert is_signalled(ground.recorder.pump)
    ground.recorder.pump._wake.clear()
    ground.add(2)
    assert not is_signalled(ground.recorder.pump)


async def test_outcomes_are_written_together_and_then_told(ground: Ground) -> None:
    ground.add(1, 2)
    first, second = over(1), over(2)
    recorded = Recorded({"a"}, True, [(first, "SUCCESS"), (second, "CALLBACK_PENDING")], 0)
    ground.store.answer("record_outcomes", recorded)
    with capture_logs() as logs:
        assert await ground.step() is None
    assert ground.store.asked == [("record_outcomes", ([first, second], True, "me", 0))]
    assert ground.told == [recorded]
    assert ground.recorded_runs == [(1, "SUCCESS"), (2, "CALLBACK_PENDING")]
    assert logs == [], "nothing failed"
    assert not is_signalled(ground.recorder.pump)


async def test_those_that_failed_are_logged_once_they_are_written(ground: Ground) -> None:
    ground.add(1, 2)
    statuses = [(over(1), "SUCCESS"), (over(2), "RETRYING")]
    ground.store.answer("record_outcomes", Recorded(set(), False, statuses, 0))
    with capture_logs() as logs:
        await ground.step()
    assert [(line["run_id"], line["status"]) for line in logs] == [(2, "RETRYING")]


async def test_a_watermark_is_written_without_outcomes(ground: Ground) -> None:
    ground.take(a_claim(9), watermark=0)
    ground.store.answer("record_outcomes", NOTHING)
    await ground.step()
    assert ground.store.asked == [("record_outcomes", ([], True, "me", 9))]
    assert is_signalled(ground.recorder.pump), "a host still waits for it"


async def test_a_pass_without_work_says_that_nothing_is_left(ground: Ground) -> None:
    assert await ground.step() is None
    assert (ground.store.asked, ground.told) == ([], [NOTHING])
    assert ground.recorder.is_idle is True


async def test_a_run_is_known_until_its_outcome_is_written(ground: Ground) -> None:
    ground.add(1)
    assert (ground.recorder.is_idle, ground.recorder.known_runs()) == (False, {1})
    meanwhile: list[Any] = []

    def write(*_: Any) -> Recorded:
        meanwhile.append((ground.recorder.is_idle, ground.recorder.known_runs()))
        ground.add(2)
        meanwhile.append((ground.recorder.is_idle, ground.recorder.known_runs()))
        return NOTHING

    ground.store.answer("record_outcomes", write)
    await ground.step()
    assert meanwhile == [(False, {1}), (False, {1, 2})]
    assert (ground.recorder.is_idle, ground.recorder.known_runs()) == (False, {2})
    assert is_signalled(ground.recorder.pump)


async def test_outcomes_are_kept_in_order_while_the_store_is_down(ground: Ground) -> None:
    ground.add(1, 2)

    def fall(*_: Any) -> Recorded:
        ground.add(3, 4)
        raise StoreDownError("away")

    ground.store.answer("record_outcomes", fall, NOTHING)
    with pytest.raises(StoreDownError):
        await ground.step()
    assert ground.told == []
    assert ground.recorder.known_runs() == {1, 2, 3, 4}
    ground.add(5)
    await ground.step()
    assert ground.batches() == [[1, 2], [1, 2, 3, 4, 5]]
    assert ground.recorder.is_idle is True


@pytest.mark.parametrize(
    ("count", "comes_back", "is_hinted"),
    [
        (MAX_OUTCOMES, None, False),
        (MAX_OUTCOMES + 1, None, True),
        (2 * MAX_OUTCOMES - 1, None, True),
        (2 * MAX_OUTCOMES, AGAIN, False),
    ],
)
async def test_a_transaction_takes_so_many_and_the_rest_follows(
    ground: Ground, count: int, comes_back: int | None, is_hinted: bool
) -> None:
    ground.add(*range(count))
    ground.store.answer("record_outcomes", NOTHING)
    assert await ground.step() == comes_back
    assert is_signalled(ground.recorder.pump) is is_hinted
    assert ground.batches() == [list(range(MAX_OUTCOMES))]
    assert ground.recorder.known_runs() == set(range(MAX_OUTCOMES, count))


@pytest.mark.parametrize(
    ("count", "interval"), [(BUSY - 1, MIN_INTERVAL), (BUSY, BUSY_INTERVAL), (1, MIN_INTERVAL)]
)
async def test_commits_are_fewer_and_larger_in_a_crowd(
    ground: Ground, count: int, interval: int
) -> None:
    ground.add(*range(count))
    ground.store.answer("record_outcomes", NOTHING)
    await ground.step()
    assert ground.recorder.pump.min_interval_us == interval
    assert (MIN_INTERVAL, BUSY_INTERVAL) == (4 * MILLISECOND, 32 * MILLISECOND)


def refusing(*bad: int) -> Any:
    """A store that takes no batch with one of these runs, and tells of each other one what came of
    it: odd ones wake, even ones are refused."""

    def write(batch: list[AttemptOver], *_: Any) -> Recorded:
        ids = [one.held.run_id for one in batch]
        if set(bad) & set(ids):
            raise ValueError("no column holds it")
        return Recorded(
            {f"h{run_id}" for run_id in ids},
            any(run_id % 2 for run_id in ids),
            [(one, "SUCCESS") for one in batch],
            sum(run_id % 2 == 0 for run_id in ids),
        )

    return write


async def test_an_outcome_that_cannot_be_written_is_left_out_and_the_others_are_not(
    ground: Ground,
) -> None:
    ground.add(2, 4, 8, 3, 6)
    ground.store.answer("record_outcomes", refusing(6))
    with capture_logs() as logs:
        await ground.step()
    assert ground.batches() == [[2, 4, 8, 3, 6], [2, 4], [8, 3, 6], [8], [3, 6], [3], [6]]
    assert ground.told == [
        Recorded(
            {"h2", "h4", "h8", "h3"}, True, [(over(n), "SUCCESS") for n in (2, 4, 8, 3)], refused=3
        )
    ]
    [line] = logs
    assert (line["event"], line["run_id"]) == ("an outcome cannot be recorded", 6)


async def test_nothing_is_woken_for_an_outcome_that_was_left_out(ground: Ground) -> None:
    ground.add(7)
    ground.store.answer("record_outcomes", refusing(7))
    with capture_logs() as logs:
        await ground.step()
    assert (ground.told, len(logs)) == ([NOTHING], 1)
    assert ground.recorder.is_idle is True, "the rescue of orphans has it"


async def test_either_half_may_wake(ground: Ground) -> None:
    ground.add(3, 2, 6, 4)
    ground.store.answer("record_outcomes", refusing(6))
    with capture_logs():
        await ground.step()
    assert ground.told[0].wakes is True


async def test_a_watermark_that_cannot_be_written_is_no_outcome_to_leave_out(
    ground: Ground,
) -> None:
    ground.take(a_claim(9), watermark=0)
    ground.store.answer("record_outcomes", ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        await ground.step()


@pytest.mark.parametrize("sole", [True, False])
def test_tasks_are_locked_where_others_write_too(sole: bool) -> None:
    tx = ScriptedTx(run_changes_finish=[True], runs_count_open={})
    record_outcomes(tx, [over(1)], sole)
    locks = [] if sole else [Told("tasks.lock", ([7],), {})]
    assert [told for told in tx.told if told.what == "tasks.lock"] == locks


@pytest.mark.parametrize(
    ("reply", "body", "encoding"),
    [
        (answered(body=b"text"), "text", None),
        (answered(), "", None),
        (answered(500), "", None),
        (Reply("timeout", Timing()), None, None),
        (Reply("unreachable", Timing(), body=b"half"), "half", None),
        (answered(body=b"\xff\xfe"), "//4=", "base64"),
        (answered(body=b"a\x00b"), "YQBi", "base64"),
    ],
    ids=["text", "empty", "empty failure", "none", "half", "no text", "a NUL"],
)
@pytest.mark.parametrize("sent", [None, b"sent"])
def test_a_response_is_kept_as_text_or_where_it_is_none_as_base64(
    reply: Reply, body: str | None, encoding: str | None, sent: bytes | None
) -> None:
    tx = ScriptedTx(run_changes_finish=[True], runs_count_open={})
    request = Request("GET", "http://a/", body=sent)
    record_outcomes(tx, [msgspec.structs.replace(over(1, reply), request=request)], sole=True)
    [change] = tx.args_of("run_changes.finish")[0][0]
    assert change.record == AttemptRecord(
        request_headers="{}",
        request_body=None if sent is None else "sent",
        response_code=reply.status,
        response_body=body,
        response_truncated=False,
        response_encoding=encoding,
    )


@pytest.mark.parametrize("sends", [0, 1, 2])
def test_an_entry_of_attempts_says_when_who_and_how(sends: int) -> None:
    timing = Timing(1.0, 2.0, 0.0, 3.0, 4.5)
    entry = entry_of(
        over(1, Reply("answered", timing, 503, sends=sends)), "RETRYING", "HTTP 503"
    ).decode()
    assert entry == (
        f'[1,1000000000,2500,"RETRYING",503,"HTTP 503","one",{sends},1000,2000,0,3000,4500]'
    )
    shown = (
        '{"attempt":1,"started_at":"1970-01-01T00:16:40Z","ended_at":"1970-01-01T00:16:40.0025Z",'
        '"status":"RETRYING","response_code":503,"error":"HTTP 503","instance":"one",'
        '"timing":{"dns_ms":1.0,"connect_ms":2.0,"tls_ms":0.0,"first_byte_ms":3.0,"total_ms":4.5}'
    )
    shown += "}" if sends == 1 else f',"sends":{sends}}}'
    assert msgspec.json.encode(read_attempts(f"[{entry}]")).decode() == f"[{shown}]"


def test_an_entry_keeps_times_to_the_microsecond() -> None:
    timing = Timing(0.0006, 0.0016, 0.0004, 12.3456, 2e3 / 3)
    [shown] = read_attempts(
        f"[{entry_of(over(1, Reply('timeout', timing)), 'TIMEOUT', None).decode()}]"
    )
    assert shown["timing"] == {
        "dns_ms": 0.001,
        "connect_ms": 0.002,
        "tls_ms": 0.0,
        "first_byte_ms": 12.346,
        "total_ms": 666.667,
    }


@pytest.mark.parametrize(
    ("reply", "status", "told"),
    [
        (
            answered(503),
            "RETRYING",
            {"status": "RETRYING", "err": "HTTP 503", "latency_ms": 1.0},
        ),
        (
            Reply("timeout", Timing(total_ms=1.23456), error="no answer in time"),
            "FAILED",
            {
                "status": "FAILED",
                "err": "no answer in time",
                "latency_ms": 1.235,
                "alert": True,
            },
        ),
    ],
)
def test_a_failed_attempt_is_one_line_in_the_log(
    reply: Reply, status: str, told: dict[str, Any]
) -> None:
    with capture_logs() as logs:
        log_failures([(over(61, reply, task=a_called_task("a", id=8, job_id="jj")), status)])
    assert logs == [
        {
            "event": "attempt failed",
            "log_level": "warning",
            "run_id": 61,
            "task_id": 8,
            "job_id": "jj",
            "attempt": 1,
            "target_url": "http://a/",
            "trace_id": "t",
            **told,
        }
    ]
