"""`ksana serve`: settings, logs, event loop, server."""

import asyncio
import os
import sys

import click

from ksana.base import log
from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS
from ksana.cli.options import add_settings


def attach(app: click.Group) -> None:
    """Add the command."""
    add_settings(app.command("serve", help=COMMANDS["serve"])(serve))


def serve(loaded: Loaded) -> None:
    """Start the server and stay until it is told to stop."""
    from ksana.boot.allocator import set_allocator
    from ksana.boot.interpreter import calm_collector, share_interpreter

    set_allocator()
    calm_collector()
    share_interpreter()
    # The server is imported under these settings.
    from ksana.base.clock import SystemClock
    from ksana.boot.logs import start_logging
    from ksana.boot.server import serve as serve_until_stopped

    settings = loaded.settings
    # A name server that is silent holds a thread for four seconds, not for ten.
    os.environ.setdefault("RES_OPTIONS", "timeout:2 attempts:2")
    os.umask(0o077)  # the store's files have their modes anyway; this is for whatever else is made
    lines = settings.logging
    logs = start_logging(lines.level, lines.format, SystemClock(), access=lines.access)
    for warning in loaded.warnings:
        log.warning(warning)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(serve_until_stopped(loaded, logs))
    raise click.exceptions.Exit(code)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where there is one."""
    if sys.platform == "win32":
        return (
            asyncio.SelectorEventLoop
        )  # the default one there cannot watch the sockets of libcurl
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop
