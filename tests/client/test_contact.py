"""What a worker says of its server, when it gives up, and how long it waits."""

import logging
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.client import wire
from ksana.client.contact import REMIND_US, ServerContact
from ksana.client.errors import ApiError, ClientError, TransportError, from_answer, from_body
from ksana.client.recovery import Recovery
from ksana.client.transport import CallBackoff

pytestmark = pytest.mark.spec("Q16")


def lost(is_outcome_unknown: bool = True) -> TransportError:
    return TransportError("x", is_outcome_unknown=is_outcome_unknown)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    caplog.set_level(logging.DEBUG, "ksana.client")

    def take() -> list[tuple[str, str]]:
        found = [(one.levelname, one.getMessage()) for one in caplog.records]
        caplog.clear()
        return found

    return take


async def test_a_server_is_mentioned_when_that_changes_and_once_a_minute_while_away(
    clock: VirtualClock, said: Callable[[], list[tuple[str, str]]]
) -> None:
    await clock.advance(500 * SECOND)
    contact = ServerContact("w", "http://u:pw@h:1/p", clock)
    error = ValueError("no")
    contact.on_failure(error, 1.0)
    assert contact.is_lost
    [(level, text)] = said()
    assert (level, text.startswith("w: cannot reach http://h:1/p,")) == ("WARNING", True)
    await clock.advance(REMIND_US - 1)
    contact.on_failure(error, 1.5)
    assert said() == [("DEBUG", "w: again in 1.5 s: no")]
    await clock.advance(1)
    contact.on_failure(error, 1.0)
    assert said() == [("WARNING", "w: http://h:1/p is away for 60 s: no")]
    contact.on_failure(error, 1.0)
    assert said()[0][0] == "DEBUG"
    await clock.advance(SECOND)
    contact.on_answer()
    assert not contact.is_lost
    assert said() == [("INFO", "w: found http://h:1/p again after 61.0 s")]
    contact.on_answer()
    assert said() == []
    contact.on_failure(error, 1.0)
    assert "w: lost http://h:1/p" in said()[0][1]


async def test_a_server_that_is_there_is_mentioned_once(
    clock: VirtualClock, said: Callable[[], list[tuple[str, str]]]
) -> None:
    contact = ServerContact("w", "http://h", clock)
    contact.on_answer()
    contact.on_answer()
    assert said() == [("INFO", "w: connected to http://h")]


@pytest.mark.parametrize(
    ("error", "is_for_good"),
    [
        (from_body(403, {"code": "FORBIDDEN"}), True),
        (from_body(499, {"code": "X"}), True),
        (from_body(429, {"code": "RATE_LIMITED"}), False),
        (from_body(500, {"code": "X"}), False),
        (from_answer(404, b"<html>"), False),  # a proxy's: the server did not say it
        (lost(), False),
    ],
)
async def test_a_worker_ends_where_it_is_refused_for_good_and_else_waits(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, error: ClientError, is_for_good: bool
) -> None:
    worker: Any = SimpleNamespace(worker_id="w", clock=clock)
    recovery = Recovery(worker, "http://h", CallBackoff(first_sec=1.0))
    pauses: list[float] = []
    monkeypatch.setattr(random, "uniform", lambda low, high: high)

    async def pause(pause_sec: float) -> None:
        pauses.append(pause_sec)

    monkeypatch.setattr(recovery, "pause", pause)
    if is_for_good:
        with pytest.raises(type(error)):
            await recovery.wait_after(error)
        assert (pauses, recovery.is_lost) == ([], False)
        return
    await recovery.wait_after(error)
    await recovery.wait_after(error)
    assert (pauses, recovery.is_lost) == ([1.0, 2.0], True)
    recovery.on_answer()
    assert not recovery.is_lost
    await recovery.wait_after(from_answer(503, b"", 9.0))
    assert pauses[-1] == 9.0
    await recovery.wait_after(lost())
    assert pauses[-1] == 2.0


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [
        (lost(True), True),
        (lost(False), False),
        (from_body(500, {"code": "X"}), True),
        (from_body(503, {"code": "X"}), False),
        (from_body(499, {"code": "X"}), False),
        (from_body(504, {"code": "X"}), True),
    ],
)
def test_an_outcome_is_unknown_where_the_server_may_have_acted(
    error: ClientError, is_unknown: bool
) -> None:
    assert wire.is_outcome_unknown(error) is is_unknown
    if isinstance(error, ApiError):
        error.unknown_tries = 1
        assert wire.is_outcome_unknown(error)
