"""Secrets of tasks against the real process: whoever may read or write tasks does not learn them,
by no change, no echo of the target, and no redirect."""

import base64
import gzip
import json
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import quote

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Answer, Request, Target

pytestmark = pytest.mark.spec("X16")

BEARER = "s3cr3t/bearer+value"
VAULT = 'vault "key" 42'
LOGIN = "ops:pa55word"
SIGNING = "whsec_" + base64.b64encode(b"a key for signatures....").decode()
NEVER = "0 0 0 1 1 *"
FINAL = {"SUCCESS", "FAILED", "TIMEOUT", "CALLBACK_SUCCESS", "FAILED_TIMEOUT", "CANCELED"}
_numbers = count(1)


@pytest.fixture(scope="module", params=["own", "libcurl"])
def program(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "ksana.toml").write_text(f'[tasks]\nplain_http = "{request.param}"\n')
    with Program(folder) as served:
        yield served.start()


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as one:
        yield one


@pytest.fixture
def elsewhere() -> Iterator[Target]:
    with Target() as other:
        yield other


def make_task(program: Program, url: str, **members: Any) -> dict[str, Any]:
    body = {
        "name": f"t{next(_numbers)}",
        "cron_expr": NEVER,
        "target_url": url,
        "http_method": "POST",
        "headers": {"Authorization": f"Bearer {BEARER}", "X-Vault": VAULT, "X-Plain": "plain"},
        "secret_headers": ["x-vault"],
        "signing_secret": SIGNING,
        **members,
    }
    answer = program.post("/api/v1/tasks", body)
    assert answer.status_code == 201, answer.text
    task: dict[str, Any] = answer.json()
    return task


def run_task(
    program: Program, task: dict[str, Any], status: str | None = None, **trigger: Any
) -> dict[str, Any]:
    """Trigger a task and wait for the end of its run, or for a status."""
    started = program.post(f"/api/v1/tasks/{task['id']}/trigger", trigger)
    assert started.status_code == 202, started.text
    path = f"/api/v1/runs/{started.json()['run_id']}"
    wanted = FINAL if status is None else {status}
    wait_for(lambda: program.get(path).json()["status"] in wanted, "the run ends")
    run: dict[str, Any] = program.get(path).json()
    return run


def shown_of(program: Program, task: dict[str, Any], run: dict[str, Any]) -> str:
    """Everything a reader can see of a task and its run, and what was logged."""
    paths = [
        f"/api/v1/tasks/{task['id']}",
        f"/jobs/{task['job_id']}",
        f"/api/v1/tasks/{task['id']}/runs",
        f"/api/v1/runs/{run['id']}",
        f"/api/v1/runs/{run['id']}/explain",
        f"/api/v1/tasks/{task['id']}/explain",
        f"/api/v1/events?entity_type=RUN&entity_id={run['id']}",
        f"/api/v1/events?entity_type=TASK&entity_id={task['id']}",
    ]
    answers = [program.get(path) for path in paths]
    assert {answer.status_code for answer in answers} <= {200, 404}
    return "\n".join([*(answer.text for answer in answers), program.log_text()])


def spellings(*secrets: str) -> list[str]:
    """How a secret may be spelled in what is shown."""
    forms: list[str] = []
    for secret in secrets:
        escaped = json.dumps(secret)[1:-1]
        forms += [secret, escaped, json.dumps(escaped)[1:-1], quote(secret, safe="")]
    return forms


def assert_hidden(text: str, *secrets: str) -> None:
    found = [form for form in spellings(*secrets) if form in text]
    assert not found, f"{found} in {text[max(0, text.find(found[0]) - 300) :][:600]}"


def echo(status: int = 200, lead: bytes = b"") -> Any:
    """Answer with everything that came, as JSON and percent-encoded."""

    def answer(request: Request) -> Answer:
        heard = json.dumps([dict(request.headers), request.body.decode("utf-8", "replace")])
        parts = [quote(value, safe="") for value in request.headers.values()]
        return Answer(status, lead + heard.encode() + " ".join(parts).encode())

    return answer


# --- changes of a task ---


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("left", [[], None, ["X-Other"]])
def test_a_header_leaves_the_list_of_secrets_only_with_a_new_value(
    program: Program, target: Target, method: str, left: list[str] | None
) -> None:
    task = make_task(program, target.url())
    path = f"/api/v1/tasks/{task['id']}"
    body = {"secret_headers": left}
    if method == "PUT":
        body = {**program.get(path).json(), **body}
        body.pop("cron_expr")
    refused = program.request(method, path, json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["field"] == "secret_headers"
    assert "new value" in refused.json()["message"]
    assert_hidden(program.get(path).text + program.get(f"/jobs/{task['job_id']}").text, VAULT)
    body["headers"] = {**task["headers"], "X-Vault": "no secret any more"}
    changed = program.request(method, path, json=body)
    assert changed.status_code == 200, changed.text
    assert changed.json()["headers"]["X-Vault"] == "no secret any more"
    assert changed.json()["headers"]["Authorization"] == "***"


@pytest.mark.parametrize("dialect", ["C", "T"])
def test_a_new_origin_needs_the_secrets_sent_again(
    program: Program, target: Target, elsewhere: Target, dialect: str
) -> None:
    is_timer = dialect == "T"
    task = make_task(program, target.url("/a"), **({"signing_secret": None} if is_timer else {}))
    path = f"/jobs/{task['job_id']}" if is_timer else f"/api/v1/tasks/{task['id']}"

    def change(url: str, **headers: str | None) -> Any:
        more = {"headers": headers} if headers else {}
        if is_timer:
            return program.request("PATCH", path, json={"http": {"url": url, **more}})
        return program.request("PATCH", path, json={"target_url": url, **more})

    field = "http.headers" if is_timer else "headers"
    assert change(target.url("/b")).status_code == 200, "the same origin keeps its secrets"
    refused = change(elsewhere.url("/b"))
    assert refused.status_code == 400
    if is_timer:
        assert refused.json()["field"] == field
    again = {"Authorization": "Bearer another", "X-Vault": None}
    refused = change(elsewhere.url("/b"), **{"Authorization": "***", "X-Vault": None})
    assert refused.status_code == 400
    if not is_timer:
        refused = change(elsewhere.url("/b"), **again)
        assert refused.json()["field"] == "signing_secret"
        program.request("PATCH", path, json={"signing_secret": None})
    moved = change(elsewhere.url("/b"), **again)
    assert moved.status_code == 200, moved.text
    run_task(program, task)
    (call,) = elsewhere.requests("/b")
    assert call.headers["authorization"] == "Bearer another"
    assert "x-vault" not in call.headers
    assert not target.requests()


def test_a_name_that_stands_in_the_address_is_part_of_the_origin(program: Program) -> None:
    task = make_task(
        program,
        "http://{{task_name}}.example.com/",
        headers={"Authorization": "Bearer x-y-z-1"},
        secret_headers=[],
        signing_secret=None,
    )
    refused = program.request("PATCH", f"/api/v1/tasks/{task['id']}", json={"name": "evil.org/"})
    assert refused.status_code == 400
    assert refused.json()["field"] == "headers"


def test_a_timer_does_not_carry_a_signing_secret_to_another_origin(
    program: Program, target: Target, elsewhere: Target
) -> None:
    task = make_task(program, target.url(), headers={}, secret_headers=[])
    answer = program.request(
        "PATCH", f"/jobs/{task['job_id']}", json={"http": {"url": elsewhere.url()}}
    )
    assert answer.status_code == 400
    assert "signing_secret" in answer.json()["message"]


# --- what the target gives back ---


@pytest.mark.parametrize("status", [200, 500, 404])
@pytest.mark.parametrize("lead", [b"", b"\xff\x00 no text "])
def test_an_answer_that_repeats_secrets_is_masked_before_it_is_stored(
    program: Program, target: Target, status: int, lead: bytes
) -> None:
    target.on("/", echo(status, lead))
    login = base64.b64encode(LOGIN.encode()).decode()
    task = make_task(
        program,
        target.url(),
        headers={"Authorization": f"Bearer {BEARER}", "X-Vault": VAULT, "Cookie": f"s={login}"},
    )
    run = run_task(program, task, override_body=json.dumps({"again": BEARER}))
    (call,) = target.requests()
    assert call.headers["x-vault"] == VAULT
    assert call.headers["webhook-signature"]
    text = shown_of(program, task, run)
    if lead:
        assert run["response_encoding"] == "base64"
        text += base64.b64decode(run["response_body"]).decode("latin-1")
    assert "***" in text
    assert_hidden(text, BEARER, VAULT, login, SIGNING.removeprefix("whsec_"))


WRITTEN = {
    "a URL in small digits": quote(BEARER, safe="").lower(),
    "JSON of .NET": BEARER.replace("+", "\\u002B"),
    "JSON inside JSON": json.dumps(json.dumps({"key": VAULT})),
    "HTML of Go": VAULT.replace('"', "&#34;"),
    "base64": base64.b64encode(f'{{"auth":"{BEARER}"}}'.encode()).decode(),
}


@pytest.mark.parametrize("way", [*WRITTEN, "gzip", "UTF-16"])
def test_a_secret_is_masked_in_whichever_way_the_target_writes_it(
    program: Program, target: Target, way: str
) -> None:
    body = WRITTEN.get(way, "").encode()
    if way == "gzip":
        body = gzip.compress(BEARER.encode() * 3)
    elif way == "UTF-16":
        body = BEARER.encode("utf-16-be")
    target.on("/", Answer(200, body))
    shown = run_task(program, make_task(program, target.url()))["response_body"]
    assert "***" in shown or b"***" in base64.b64decode(shown), shown
    assert base64.b64encode(BEARER.encode()).decode()[4:20] not in shown


def test_a_secret_cut_in_half_by_the_limit_does_not_show_its_first_half(
    program: Program, target: Target
) -> None:
    target.on("/", Answer(200, b"x" * 90 + BEARER.encode()))
    task = make_task(program, target.url(), response_limit=100)
    run = run_task(program, task)
    assert run["response_truncated"]
    assert run["response_body"] == "x" * 90 + "***"


def test_the_credentials_of_a_basic_login_are_masked_in_clear_text_too(
    program: Program, target: Target
) -> None:
    target.on("/", Answer(200, f"hello {LOGIN}, your password is pa55word".encode()))
    login = base64.b64encode(LOGIN.encode()).decode()
    task = make_task(program, target.url(), headers={"Authorization": f"Basic {login}"})
    assert run_task(program, task)["response_body"] == "hello ***, your password is ***"


@pytest.mark.spec("C16")
def test_a_callback_token_is_shown_nowhere_whatever_repeats_it(
    program: Program, target: Target
) -> None:
    target.on("/", echo(202))
    task = make_task(program, target.url(), exec_type="ASYNC", http_method="POST")
    run = run_task(program, task, "CALLBACK_PENDING")
    (call,) = target.requests()
    token = call.headers["x-callback-token"]
    assert token in call.body.decode()
    body = {
        "status": "FAILED",
        "data": {"token": token, "auth": BEARER},
        "error_message": f"{'e' * 1020}{token} and {VAULT}",
        "more": call.headers["x-callback-url"],
    }
    told = program.post(
        f"/api/v1/callbacks/{token}", body, headers={"X-Original-Uri": f"/callbacks/{token}"}
    )
    assert told.json()["final_status"] == "FAILED"
    run = program.get(f"/api/v1/runs/{run['id']}").json()
    assert run["callback_data"] == {"token": "***", "auth": "***"}
    assert_hidden(shown_of(program, task, run), token, token[:12], BEARER, VAULT)


# --- redirects ---


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_origin_carries_no_secret(
    program: Program, target: Target, elsewhere: Target, status: int
) -> None:
    target.on("/", Answer(status, b"", {"Location": elsewhere.url("/there")}))
    task = make_task(
        program, target.url(), exec_type="ASYNC", follow_redirects=3, body_template='{"a":1}'
    )
    run_task(program, task, "CALLBACK_PENDING")
    (first,), (second,) = target.requests(), elsewhere.requests()
    for name in ("authorization", "x-vault", "x-callback-token", "webhook-signature"):
        assert name in first.headers
    left = {name for name in second.headers if name.startswith(("x-callback", "webhook"))}
    assert not left | ({"authorization", "x-vault"} & set(second.headers))
    assert second.headers["x-plain"] == "plain"
    heard = second.body.decode() + second.query + json.dumps(second.headers)
    assert_hidden(heard, BEARER, VAULT, first.headers["x-callback-token"])


def test_a_body_that_holds_a_secret_does_not_follow_to_another_origin(
    program: Program, target: Target, elsewhere: Target
) -> None:
    target.on("/", Answer(307, b"", {"Location": elsewhere.url("/there")}))
    for members in (
        {"exec_type": "ASYNC"},  # the facts of the run, with the callback's address
        {"body_template": json.dumps({"auth": BEARER})},
        {"body_template": "anything", "secret_body": True},
    ):
        task = make_task(program, target.url(), follow_redirects=3, **members)
        run = run_task(program, task)
        assert run["status"] == "FAILED"
        assert "another origin, and the body holds a secret" in run["error_message"]
    assert not elsewhere.requests()


def test_a_location_that_repeats_a_token_is_masked_and_not_followed_elsewhere(
    program: Program, target: Target, elsewhere: Target
) -> None:
    def send_away(request: Request) -> Answer:
        token = request.headers["x-callback-token"]
        place = elsewhere.url(f"/{'p' * 150}?token={token}&rest=1")
        return Answer(302, token.encode(), {"Location": place})

    target.on("/", send_away)
    task = make_task(program, target.url(), exec_type="ASYNC", follow_redirects=3)
    run = run_task(program, task)
    assert not elsewhere.requests()
    assert "the address holds a secret or a callback token" in run["error_message"]
    token = target.requests()[0].headers["x-callback-token"]
    assert_hidden(shown_of(program, task, run), token, token[:8])


def test_secrets_stay_with_a_redirect_inside_the_origin(program: Program, target: Target) -> None:
    target.on("/", Answer(307, b"", {"Location": "/there"}))
    task = make_task(program, target.url(), follow_redirects=3, body_template="x")
    assert run_task(program, task)["status"] == "SUCCESS"
    (call,) = target.requests("/there")
    assert call.headers["x-vault"] == VAULT
    assert call.body == b"x"


# --- a secret body ---


def test_a_secret_body_is_sent_and_never_shown(program: Program, target: Target) -> None:
    target.on("/", echo())
    task = make_task(program, target.url(), body_template="body of secrets", secret_body=True)
    path = f"/api/v1/tasks/{task['id']}"
    assert task["body_template"] == "***"
    refused = program.request("PATCH", path, json={"secret_body": False})
    assert refused.json()["field"] == "secret_body"
    kept = program.request("PATCH", path, json={"body_template": "***", "description": "kept"})
    assert kept.status_code == 200
    run = run_task(program, task)
    assert target.requests()[0].body == b"body of secrets"
    assert run["request_body"] == "***"
    assert_hidden(shown_of(program, task, run), "body of secrets")
    run = run_task(program, task, override_body=json.dumps({"k": [{"v": "another secret"}]}))
    assert_hidden(shown_of(program, task, run), "another secret")
    opened = program.request("PATCH", path, json={"secret_body": False, "body_template": "open"})
    assert opened.json()["body_template"] == "open"


def test_values_of_a_targets_query_are_logged_by_a_list_of_names(
    program: Program, target: Target
) -> None:
    target.on("/", Answer(500))
    task = make_task(program, target.url("/?page=7&session=abc123hidden"))
    run_task(program, task)
    lines = [line for line in program.log_text().splitlines() if "page=7" in line]
    assert lines
    assert all("session=***" in line and "abc123hidden" not in line for line in lines)
