"""Lines go where boot says, and warnings to stderr before it does."""

from typing import Any

import pytest

from ksana.base import log
from tests.ground.logs import capture_logs


def test_what_is_logged_before_the_start_shows_from_warnings_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.info("quiet")
    log.warning("waiting", tries=3, err="a\x1b[31m\nb")
    log.error("gave up")
    assert capsys.readouterr() == (
        "",
        "ksana: warning: waiting tries=3 err='a\\x1b[31m\\nb'\nksana: error: gave up\n",
    )


@pytest.mark.parametrize("least", list(log.LEVELS))
def test_lines_below_the_least_level_are_not_written(least: str) -> None:
    written: list[str] = []

    def write(level: str, words: str, members: dict[str, Any]) -> None:
        written.append(level)

    before = log.redirect(log.Output(log.LEVELS[least], write))
    try:
        for write_line in (log.debug, log.info, log.warning, log.error):
            write_line("x")
    finally:
        log.redirect(before)
    levels = list(log.LEVELS)
    assert written == levels[levels.index(least) :]
    assert log.current() is before


def test_an_exception_is_an_error_with_its_stack() -> None:
    with capture_logs() as lines:
        log.exception("fell", job_id="7")
    assert lines == [{"event": "fell", "log_level": "error", "job_id": "7", "exc_info": True}]
