"""Sessions that go on asking while something is done to Redis, and what must hold afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ksana.base.errors import DependencyDownError
from ksana.domain.nodes import frames
from tests.nodes.world import Instance, NodeTalker, SessionTalker, until


class Load:
    """Callers of one session, each with one job at a time."""

    def __init__(self, session: SessionTalker, callers: int = 16, wait_sec: float = 30.0) -> None:
        self._session = session
        self._callers = callers
        self._wait_sec = wait_sec
        self._is_over = False
        self._waiting: dict[str, asyncio.Future[frames.SessionResult]] = {}
        self.made: list[str] = []
        self.results: dict[str, list[frames.SessionResult]] = {}
        self.refused = 0
        self.slowest_s = 0.0
        session.on_frame = self._hear

    def _hear(self, frame: Any) -> None:
        if isinstance(frame, frames.SessionResult):
            self.results.setdefault(frame.job_id, []).append(frame)
            waiting = self._waiting.pop(frame.job_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)

    @property
    def failures(self) -> list[frames.SessionResult]:
        return [one for told in self.results.values() for one in told if not one.success]

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator["Load"]:
        """Ask until the block ends, then wait until everything that was promised has ended."""
        tasks = [asyncio.create_task(self._call(number)) for number in range(self._callers)]
        try:
            await until(lambda: len(self.results) > 20, "the load runs")
            yield self
        finally:
            self._is_over = True
            await asyncio.gather(*tasks)

    async def more(self, count: int = 20) -> None:
        """Wait until so many more jobs have ended well."""
        before = self._count_good()
        await until(lambda: self._count_good() >= before + count, f"{count} more results")

    def _count_good(self) -> int:
        return sum(told[0].success for told in self.results.values())

    async def _call(self, number: int) -> None:
        turn = 0
        loop = asyncio.get_running_loop()
        while not self._is_over:
            turn += 1
            began = loop.time()
            payload = b'"%d/%d"' % (number, turn)
            try:
                created = await self._session.ask(payload, wait_sec=self._wait_sec)
            except DependencyDownError:
                self.refused += 1
                await asyncio.sleep(0.05)
                continue
            self.made.append(created.job_id)
            if created.job_id not in self.results:
                ended = loop.create_future()
                self._waiting[created.job_id] = ended
                async with asyncio.timeout(90):
                    await ended
            if (result := self.results[created.job_id][0]).success:
                assert bytes(result.data) == payload
            self.slowest_s = max(self.slowest_s, loop.time() - began)

    def check(self, nodes: list[NodeTalker], *, may_fail: int = 0) -> None:
        """Every job that was made has ended and was told once; no socket was closed, and no node
        had more than its slots."""
        told = {job_id: len(results) for job_id, results in self.results.items()}
        assert told == dict.fromkeys(self.made, 1)
        codes = [one.error.code for one in self.failures if one.error is not None]
        assert len(codes) <= may_fail, codes
        assert self._session.closed is None
        for node in nodes:
            assert node.closed is None
            assert node.hosted is not None
            assert node.most_at_once <= node.hosted.record.slots


async def slots_are_free(instance: Instance, *node_ids: str) -> None:
    """Wait until no slot is held any more."""

    async def held() -> int:
        return sum([await instance.fabric.reservations.count(one) for one in node_ids])

    async with asyncio.timeout(20):
        while await held():
            await asyncio.sleep(0.05)
