"""A target that checks that a call really comes from your Ksana, by the Standard Webhooks
signature. Standard library only.

    ksana serve
    python examples/signed_calls.py

The task has a signing secret. Each call carries webhook-id, webhook-timestamp and
webhook-signature. The target computes the signature over id, timestamp and body with the same
secret, compares in constant time, and refuses what is old.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BASE = os.environ.get("KSANA_URL", "http://127.0.0.1:7100")
KEY = os.environ.get("KSANA_API_KEY")
SECRET = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
OLDEST_SEC = 300


def is_ours(headers: Any, body: bytes) -> bool:
    """Tell whether the signature fits, and is not from long ago."""
    stamp = headers.get("webhook-timestamp", "0")
    if abs(time.time() - int(stamp)) > OLDEST_SEC:
        return False
    content = f"{headers.get('webhook-id')}.{stamp}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return any(
        hmac.compare_digest(expected, each) for each in headers.get("webhook-signature", "").split()
    )


class Target(BaseHTTPRequestHandler):
    """Takes only what is signed."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200 if is_ours(self.headers, body) else 401)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Stay quiet."""


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


def main() -> None:
    """Call the target once with the right secret and once with another."""
    target = ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=target.serve_forever, daemon=True).start()
    wrong = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    for name, secret in (("the right secret", SECRET), ("another secret", wrong)):
        task = ask(
            "POST",
            f"{BASE}/api/v1/tasks",
            {
                "name": f"example: {name}",
                "cron_expr": "0 3 * * *",
                "http_method": "POST",
                "target_url": f"http://127.0.0.1:{target.server_port}/hook",
                "body_template": '{"run": "{{run_uid}}"}',
                "signing_secret": secret,
            },
        )
        run_id = ask("POST", f"{BASE}/api/v1/tasks/{task['id']}/trigger")["run_id"]
        while (run := ask("GET", f"{BASE}/api/v1/runs/{run_id}"))["final_status"] is None:
            time.sleep(0.05)
        print(f"{name}: {run['response_code']} {run['final_status']}")
        ask("DELETE", f"{BASE}/api/v1/tasks/{task['id']}")
    target.shutdown()


if __name__ == "__main__":
    main()
