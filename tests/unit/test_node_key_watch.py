"""Keys of open sockets are judged while there are any."""

import asyncio
from typing import Any, cast

import pytest

from ksana.api.nodes.key_watch import CHECK_EVERY, KeyWatch
from ksana.base.clock import VirtualClock
from ksana.base.errors import ForbiddenError
from ksana.base.instant import SECOND
from ksana.engine.nodes.peers import REVOKED


class Socket:
    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.closed: list[tuple[int, str]] = []

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))


@pytest.mark.spec("X19")
async def test_a_key_is_judged_as_long_as_it_holds_a_socket_open(clock: VirtualClock) -> None:
    judged: list[Any] = []
    is_revoked = False

    async def judge(call: Any) -> None:
        judged.append(call)
        if is_revoked:
            raise ForbiddenError("the key is revoked")

    keys = KeyWatch(clock, judge)
    running = asyncio.create_task(keys.pump.run())
    await clock.advance(30 * SECOND)
    assert keys.pump.steps == 1, "no socket is open: nobody needs to look"
    first, second = Socket("k"), Socket("k")
    with keys.watching(cast(Any, first), cast(Any, "one")):
        with keys.watching(cast(Any, second), cast(Any, "two")):
            await clock.advance(2 * CHECK_EVERY)
            assert judged == ["one"] * 3, "one of them speaks for the key"
            is_revoked = True
            await clock.advance(CHECK_EVERY)
            assert first.closed == second.closed == [(REVOKED, "FORBIDDEN")]
        steps = keys.pump.steps
    await clock.advance(CHECK_EVERY)
    await clock.advance(30 * SECOND)
    assert keys.pump.steps == steps + 1
    running.cancel()
