"""The clock of a network database as the writers of an instance read it."""

from typing import Any, cast

import pytest

from ksana.base.instant import SECOND
from ksana.store.sql.core.database_clock import MOST_HELD_BACK, DatabaseClock
from ksana.store.sql.core.session import Session

START = 1_800_000_000 * SECOND


class Server:
    """A database that tells the time, and how long its answers are on their way."""

    def __init__(self) -> None:
        self.monotonic, self.ahead = 100.0, START - 100 * SECOND
        self.way_there = self.way_back = 0.0
        self.asked = 0

    def raw(self, _: str) -> tuple[int]:
        self.asked += 1
        self.monotonic += self.way_there
        told = self.ahead + round(self.monotonic * 1e6)
        self.monotonic += self.way_back
        return (told,)

    @property
    def now(self) -> int:
        return self.ahead + round(self.monotonic * 1e6)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock(server: Server) -> DatabaseClock:
    return DatabaseClock("SELECT 1", lambda: server.monotonic)


def read(clock: DatabaseClock, server: Server) -> int:
    return clock.read(cast("Session", cast("Any", server)))


def test_the_server_is_asked_once_a_second_and_time_goes_on_between(
    clock: DatabaseClock, server: Server
) -> None:
    for _ in range(25):
        assert abs(read(clock, server) - server.now) <= 1
        server.monotonic += 0.1
    assert server.asked == 3


def test_an_answer_that_was_slow_on_one_way_does_not_turn_time_back(
    clock: DatabaseClock, server: Server
) -> None:
    server.way_back = 0.02  # taken for a clock that is 10 ms behind what it is
    first = read(clock, server)
    server.way_back, server.way_there, server.monotonic = 0.0, 0.04, server.monotonic + 1.001
    second = read(clock, server)
    server.way_there, server.way_back, server.monotonic = 0.0, 0.06, server.monotonic + 1.001
    third = read(clock, server)
    server.monotonic += 0.001
    assert first < second < third <= read(clock, server)


def test_a_clock_that_seems_a_little_behind_is_waited_for(
    clock: DatabaseClock, server: Server
) -> None:
    first = read(clock, server)
    server.ahead -= MOST_HELD_BACK
    clock.forget()
    assert read(clock, server) == first
    server.monotonic += MOST_HELD_BACK / 1e6 / 2
    assert read(clock, server) == first
    server.monotonic += MOST_HELD_BACK / 1e6
    assert first < read(clock, server) <= server.now
    assert abs(read(clock, server) - server.now) <= 1


def test_a_clock_that_was_set_back_is_followed(clock: DatabaseClock, server: Server) -> None:
    first = read(clock, server)
    server.ahead -= MOST_HELD_BACK + 5
    assert read(clock, server) == first, "it is not asked yet"
    clock.forget()
    assert abs(read(clock, server) - (first - MOST_HELD_BACK - 5)) <= 1


def test_another_server_is_asked_at_once(clock: DatabaseClock, server: Server) -> None:
    read(clock, server)
    server.ahead += 30 * SECOND
    clock.forget()
    assert abs(read(clock, server) - server.now) <= 1


def test_after_an_answer_that_met_a_pause_the_next_transaction_asks_anew(
    clock: DatabaseClock, server: Server
) -> None:
    read(clock, server)
    server.monotonic += 1.001
    server.way_back = 60.0  # frozen before the answer was read
    assert abs(read(clock, server) - server.now) <= 1, "it was known, and goes on"
    server.way_back, server.ahead = 0.0, server.ahead + 5 * SECOND
    assert abs(read(clock, server) - server.now) <= 1
    assert server.asked == 3


@pytest.mark.parametrize("way", ["way_there", "way_back"])
def test_an_answer_that_was_late_does_not_move_a_clock_that_is_known(
    clock: DatabaseClock, server: Server, way: str
) -> None:
    read(clock, server)
    for _ in range(3):
        server.monotonic += 1.001
        setattr(server, way, 0.8)
        assert abs(read(clock, server) - server.now) <= 1
        setattr(server, way, 0.0)
    assert server.asked == 4


def test_a_late_first_answer_is_asked_for_again(clock: DatabaseClock, server: Server) -> None:
    ways = iter([0.8, 0.001])

    class Slow:
        def raw(self, sql: str) -> tuple[int]:
            server.way_back = next(ways)
            return server.raw(sql)

    now = clock.read(cast("Session", cast("Any", Slow())))
    assert abs(now - server.now) <= 1_000 and server.asked == 2


def test_where_every_answer_is_late_a_few_are_asked_for(
    clock: DatabaseClock, server: Server
) -> None:
    server.way_there = server.way_back = 0.05
    assert abs(read(clock, server) - server.now) <= 1
    assert server.asked == 3
    server.monotonic += 1.001
    assert abs(read(clock, server) - server.now) <= 1
    assert server.asked == 4
    clock.forget()
    read(clock, server)
    assert server.asked == 7
