"""The console below a path of a proxy's own."""

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.console.browser import BrowserThread, Tab
from tests.ground.child import free_port, wait_for
from tests.ground.process import Program
from tests.ground.server import need_program
from tests.ground.target import Target

NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location /tools/ksana/ {{
      proxy_pass http://127.0.0.1:{server}/;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@pytest.fixture
def below(server: Program, tmp_path: Path) -> Iterator[str]:
    """The address below which a proxy serves Ksana."""
    port = free_port()
    config = tmp_path / "nginx.conf"
    config.write_text(NGINX.format(folder=tmp_path, port=port, server=server.port))
    program = need_program("nginx")
    proxy = subprocess.Popen([program, "-p", str(tmp_path), "-c", str(config), "-e", "stderr"])
    address = f"http://127.0.0.1:{port}/tools/ksana"

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return server.client.get(f"{address}/readyz").status_code == 200
        return False

    try:
        wait_for(answers, "nginx answers")
        yield address
    finally:
        proxy.terminate()
        proxy.wait(10)


def test_the_console_works_below_a_path_prefix(
    browser_thread: BrowserThread,
    server: Program,
    target: Target,
    below: str,
    tabs: Callable[..., Tab],
) -> None:
    tab = tabs(below)
    page = tab.page
    page.goto(f"{below}/")
    expect(page).to_have_url(re.compile(re.escape(f"{below}/ui/")))
    expect(page.get_by_role("button", name="live")).to_be_visible()
    body = {
        "name": "seen through a proxy",
        "schedule": {"kind": "every", "every": "1h"},
        "target_url": target.url("/proxied"),
    }
    task = server.post("/api/v1/tasks", json=body).json()
    tab.go(f"tasks/{task['id']}")
    page.get_by_role("button", name="Run now").click()
    # Nothing is pressed: the event stream comes through.
    expect(page.locator("tbody tr", has_text="succeeded")).to_be_visible()
