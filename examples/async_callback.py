"""A target that takes work, does it later, and calls back: an async task from both sides. Standard
library only.

    ksana serve
    python examples/async_callback.py

Ksana calls the target with `X-Callback-Url`. The target answers 202 at once; the run is
CALLBACK_PENDING. When the work is done the target posts the result to that URL; the run is
CALLBACK_SUCCESS.
"""

import json
import os
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BASE = os.environ.get("KSANA_URL", "http://127.0.0.1:7100")
KEY = os.environ.get("KSANA_API_KEY")


def ask(method: str, url: str, body: Any = None) -> Any:
    """Send JSON, read JSON."""
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {KEY}"} if KEY else {}
    )
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, headers, method=method), timeout=10
    ) as answer:
        return json.load(answer)


class Target(BaseHTTPRequestHandler):
    """Takes the work and answers at once."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = self.headers["X-Callback-Url"]
        threading.Thread(target=self.work, args=(url,)).start()
        self.send_response(202)
        self.end_headers()

    @staticmethod
    def work(url: str) -> None:
        """Do the work, tell how far it is, then how it ended."""
        print("told:", ask("POST", url, {"status": "RUNNING", "progress": 0.5}))
        time.sleep(0.2)  # the work
        print("told:", ask("POST", url, {"status": "SUCCESS", "data": {"rows": 42}}))

    def log_message(self, *args: Any) -> None:
        """Stay quiet."""


def main() -> None:
    """Start the target, make the task, trigger it, and wait for the end of its run."""
    target = ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=target.serve_forever, daemon=True).start()
    task = ask(
        "POST",
        f"{BASE}/api/v1/tasks",
        {
            "name": "example-nightly-export",
            "cron_expr": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "exec_type": "ASYNC",
            "http_method": "POST",
            "target_url": f"http://127.0.0.1:{target.server_port}/export",
            "callback_timeout_sec": 30,
        },
    )
    try:
        run_id = ask("POST", f"{BASE}/api/v1/tasks/{task['id']}/trigger")["run_id"]
        while (run := ask("GET", f"{BASE}/api/v1/runs/{run_id}"))["final_status"] is None:
            time.sleep(0.05)
        print(f"run {run_id}: {run['status']}, data {run['callback_data']}")
    finally:
        ask("DELETE", f"{BASE}/api/v1/tasks/{task['id']}")
        target.shutdown()


if __name__ == "__main__":
    main()
