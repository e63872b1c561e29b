"""The command line: what `ksana` says of its commands, and of mistakes."""

from pathlib import Path

import pytest

from ksana.cli.main import COMMANDS
from tests.ground.process import run_cli


def test_the_help_lists_the_commands_in_their_order(tmp_path: Path) -> None:
    code, text = run_cli("--help", cwd=tmp_path)
    assert code == 0
    listed = [line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line]
    assert listed == list(COMMANDS)


def test_the_help_of_a_command_shows_every_setting_and_its_default(tmp_path: Path) -> None:
    code, text = run_cli("serve", "--help", cwd=tmp_path)
    assert code == 0
    assert "--port, --server-port INTEGER" in text and "[7100]" in text
    assert "--store-migrate / --no-store-migrate" in text


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("nope",), "No such command 'nope'"),
        (("serve", "--nope"), "No such option '--nope'"),
        (("key", "create", "--name", "x"), "Missing option '--scope'"),
        (("echo", "--port", "99999"), "'--port': 99999 is not in the range"),
        (("backfill", "x", "--from", "y"), "'TASK': 'x' is not a valid integer"),
        ((), "Start the server."),
        (("key",), "Make a key and print it"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_a_mistake_in_the_command_line_ends_with_two(
    tmp_path: Path, command: tuple[str, ...], words: str
) -> None:
    code, text = run_cli(*command, cwd=tmp_path)
    assert code == 2
    assert words in text and "Traceback" not in text


def test_a_switch_is_off_on_or_left_to_the_other_sources(tmp_path: Path) -> None:
    env = {"KSANA_STORE_MIGRATE": "false"}
    for flags, shown in (((), "false"), (("--store-migrate",), "true")):
        code, text = run_cli("config", *flags, env=env, cwd=tmp_path)
        assert code == 0
        (line,) = [line for line in text.splitlines() if line.startswith("store.migrate ")]
        assert line.split()[1] == shown, line
    code, text = run_cli("config", "--no-store-migrate", cwd=tmp_path)
    assert "flag --store-migrate" in text
