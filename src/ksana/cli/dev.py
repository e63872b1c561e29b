"""`ksana dev`: a server on a temporary store with sample tasks, a worker, a node and a target, so
that there is something to see on every page of the console. Nothing of it is kept."""

import tempfile
import threading
from pathlib import Path

import click

from ksana.cli.main import COMMANDS


def attach(app: click.Group) -> None:
    """Add the command."""
    app.command("dev", help=COMMANDS["dev"])(dev)


@click.option(
    "--port", type=click.IntRange(1, 65535), default=7100, metavar="PORT", help="Where to listen."
)
def dev(port: int) -> None:
    """Serve until it is told to stop; then the store is deleted."""
    from ksana.boot.settings.sources import load
    from ksana.cli.dev_samples import live, serve_target
    from ksana.cli.serve import serve

    with tempfile.TemporaryDirectory(prefix="ksana-dev-") as folder:
        # An empty file of settings, and no environment: a store or a Redis that is configured here
        # is not to be filled with samples.
        config = Path(folder, "ksana.toml")
        config.touch()
        flags = {"server.port": str(port), "store.data_dir": folder, "logging.level": "error"}
        loaded = load(flags, {}, str(config))
        target = serve_target()
        address = f"http://127.0.0.1:{port}"
        click.echo(f"{address}/ui/ shows samples on a temporary store; Ctrl-C ends and deletes it")
        threading.Thread(target=live, args=(address, target), daemon=True).start()
        serve(loaded)
