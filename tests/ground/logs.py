"""What was logged while a test looked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ksana.base import log


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Every line of any level, as its members with `event` (the words) and `log_level`."""
    lines: list[dict[str, Any]] = []

    def write(level: str, words: str, members: dict[str, Any]) -> None:
        lines.append({**members, "event": words, "log_level": level})

    before = log.redirect(log.Output(0, write))
    try:
        yield lines
    finally:
        log.redirect(before)
