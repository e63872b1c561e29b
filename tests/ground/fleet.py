"""Several instances over one store, each a process of its own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.ground.process import Program


@contextlib.contextmanager
def fleet(folder: Path, url: str, count: int) -> Iterator[list[Program]]:
    """So many instances over one store, all started."""
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(
                Program(folder / f"i{n}", store=url, env={"KSANA_INSTANCE_ID": f"i{n}"})
            )
            for n in range(count)
        ]
        programs[0].start()  # it makes the schema
        for program in programs[1:]:
            program.start(until=None)
        for program in programs[1:]:
            program.wait_until()
        yield programs
