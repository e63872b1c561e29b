"""The program `ksana`: the list of commands, and the one place where errors become sentences and
exit codes.

Only the module of the command that was asked for is imported; the others are known by their name
and sentence. That keeps `ksana --help` fast.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final

import click

COMMANDS: Final = {
    "serve": "Start the server.",
    "dev": "Start a server on a temporary store, with samples of everything.",
    "migrate": "Bring the store's schema up to date.",
    "config": "Print every setting, its value and where it came from.",
    "echo": "Show every request that comes: a target to try timers and tasks with.",
    "backfill": "Fire past slots of a task, through the running server.",
    "doctor": "Check this machine and the store for what a server needs.",
    "key": "Make, list and revoke API keys.",
    "secret": "Make keys for secrets in the store, and replace them.",
    "audit": "Verify and export the audit.",
    "version": "Print the version.",
}
"""Command and sentence; the module of the same name in this package has `attach(app)`."""

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class CommandGroup(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def build(wanted: str | None) -> CommandGroup:
    """Make the app, with the wanted command in full and the others as names."""
    app = CommandGroup(
        help="One scheduling service for everything that must happen later, again, or elsewhere.",
        no_args_is_help=True,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 110,
            "show_default": True,
        },
    )
    for name, sentence in COMMANDS.items():
        if name == wanted:
            attach: Callable[[click.Group], None] = import_module(f"ksana.cli.{name}").attach
            attach(app)
        else:
            app.add_command(click.Command(name, help=sentence))
    return app


def run(args: list[str] | None = None) -> None:
    """Run the program; the exit code goes to the shell."""
    given = sys.argv[1:] if args is None else args
    if given[:1] == ["--version"]:
        given = ["version", *given[1:]]
    wanted = next((word for word in given if not word.startswith("-")), None)
    try:
        code = build(wanted).main(args=given, prog_name="ksana", standalone_mode=False)
    except click.ClickException as error:  # a mistake in the command line
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_FAILED
    except Exception as error:
        sentence = _sentence_for(error)
        if sentence is None:
            raise
        print(f"ksana: {sentence}", file=sys.stderr)
        code = EXIT_FAILED
    sys.exit(code)


def _sentence_for(error: Exception) -> str | None:
    """The words for an error that the operator can do something about; None for a bug of ours."""
    from ksana.base.errors import KsanaError, SetupError

    if isinstance(error, SetupError | KsanaError):
        from ksana.boot.redaction import escape_controls, redact_text

        text = escape_controls(redact_text(str(error))).strip()
        return text if text.endswith((".", "!", "?")) else text + "."
    return None
