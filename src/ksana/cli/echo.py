"""`ksana echo`: a target to try timers and tasks with. It prints each request it gets and answers
with it. Loopback only, nothing is kept."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import click

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError
from ksana.base.instant import format_instant
from ksana.cli.main import COMMANDS

HOST: Final = "127.0.0.1"
PORT: Final = 7101
"""Beside the server's own 7100."""
MAX_BODY: Final = 1 << 20
SHOWN: Final = 2000
"""Characters of a body that are printed."""
_SILENCE_SEC: Final = 75
"""After which a connection that is kept open is closed; callers keep theirs for a minute."""


def attach(app: click.Group) -> None:
    """Add the command."""
    app.command("echo", help=COMMANDS["echo"])(echo)


@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    metavar="PORT",
    help="0 takes a free one.",
)
@click.option(
    "--status",
    type=click.IntRange(200, 599),
    default=200,
    metavar="CODE",
    help="Answer with this status; 503 shows retries.",
)
@click.option("--headers", is_flag=True, help="Print the headers of requests too.")
def echo(port: int, status: int, headers: bool) -> None:
    """Print each request to http://127.0.0.1:7101 and answer it."""
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(status, headers))
    except OSError as error:
        raise SetupError(
            f"Cannot listen on {HOST}:{port}: {error.strerror}; choose another with --port"
        ) from None
    with server:
        _say(
            f"http://{HOST}:{server.server_port} answers {status}, and every request is shown here"
        )
        server.serve_forever()


def _handler(status: int, shows_headers: bool) -> type[BaseHTTPRequestHandler]:
    clock = SystemClock()

    class Echo(BaseHTTPRequestHandler):
        """Prints a request and sends it back."""

        protocol_version = "HTTP/1.1"
        timeout = _SILENCE_SEC
        server_version = "ksana-echo"
        sys_version = ""

        def answer(self) -> None:
            """Whatever the method."""
            length = self.headers.get("content-length") or "0"
            if not length.isdecimal() or int(length) > MAX_BODY:
                self.close_connection = True
                self.send_error(413, f"a body has up to {MAX_BODY} bytes")
                return
            body = self.rfile.read(int(length)).decode("utf-8", "replace")
            self._show(body)
            told = {"method": self.command, "path": self.path, "body": body}
            sent = b"" if status in (204, 304) else json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        def _show(self, body: str) -> None:
            lines = [f"{format_instant(clock.now())}  {self.command} {self.path}"]
            if shows_headers:
                lines += [f"    {name}: {value}" for name, value in self.headers.items()]
            if body:
                more = " …" if len(body) > SHOWN else ""
                lines.append(f"    {body[:SHOWN]}{more}")
            _say(*lines)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing: `_show` has said it."""

    return Echo


def _say(*lines: str) -> None:
    from ksana.boot.redaction import escape_controls

    # One write: requests come on several threads.
    sys.stdout.write("".join(f"{escape_controls(line)}\n" for line in lines))
    sys.stdout.flush()
