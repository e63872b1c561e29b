"""What is stored of a request and its answer: all that was sent, and nothing that is secret."""

from typing import Any

import msgspec
import pytest

from ksana.domain.secrets import Secrets
from ksana.domain.tasks.signing import sign
from ksana.engine.tasks.requests import (
    shown_body,
    shown_reply,
)
from ksana.ports.caller import Reply, Request, Timing
from tests.unit.request_ground import (
    OURS,
    SENT_AT,
    SIGNING,
    TOKEN,
    UID,
    URL,
    a_called_task,
    asynchronous,
    build,
    held,
    request_of,
    sent_headers,
    shown_headers,
)


@pytest.mark.spec("X2")
def test_secret_headers_are_sent_and_never_shown() -> None:
    own = {"Authorization": "Bearer key-of-mine", "X-Mine": "mine-and-only", "X-Open": "open"}
    built = build(held(a_called_task(headers=own, secret_headers=("x-MINE",))))
    assert sent_headers(built) == own | OURS
    assert (
        shown_headers(built)
        == {
            "Authorization": "***",
            "X-Mine": "***",
            "X-Open": "open",
        }
        | OURS
    )
    assert built.request.secrets is not None
    assert set(built.request.secrets.values) > {
        b"Bearer key-of-mine",
        b"Bearer%20key-of-mine",
        b"Bearer+key-of-mine",
        b"key-of-mine",
        b"mine-and-only",
    }


@pytest.mark.parametrize("body", [None, "signed"])
def test_a_signature_covers_what_is_sent_and_is_not_shown(body: str | None) -> None:
    built = build(held(a_called_task(signing_secret=SIGNING, body=body)))
    expected = sign(SIGNING, UID, SENT_AT, (body or "").encode())
    assert built.request.headers[-3:] == expected
    assert shown_headers(built) == sent_headers(built) | {"webhook-signature": "***"}


def test_headers_are_shown_as_they_were_sent() -> None:
    own = {"X-One": 'run "{{run_id}}"', "X-Two": "2"}
    for members in ({"body": "x"}, {"body": "[]"}, {"headers": own}, {"template": False}):
        built = build(held(a_called_task(**{"headers": {"X-Two": "2"}, **members})))
        assert shown_headers(built) == sent_headers(built)
    built = build(held(a_called_task(headers=own)))
    assert shown_headers(built) == {"X-One": 'run "60"', "X-Two": "2"} | OURS


@pytest.mark.spec("X2")
def test_a_secret_is_not_shown_because_a_placeholder_stands_for_it() -> None:
    own = {"X-Mine": "{{callback_token}} of {{attempt}}", "Cookie": "sweet-{{attempt}}"}
    built = build(asynchronous(a_called_task(headers=own)))
    assert sent_headers(built)["X-Mine"] == f"{TOKEN} of 1"
    assert shown_headers(built) == OURS | {
        "X-Mine": "*** of 1",
        "Cookie": "***",
        "X-Callback-Url": "***",
        "X-Callback-Token": "***",
    }


@pytest.mark.spec("X2")
def test_a_secret_with_a_placeholder_is_looked_for_as_it_is_sent() -> None:
    secrets = request_of(headers={"X-Api-Key": "key-{{run_uid}}"}).secrets
    assert secrets is not None
    assert f"key-{UID}".encode() in secrets.values
    assert not any(b"{{" in one for one in secrets.values)


@pytest.mark.spec("X2")
@pytest.mark.parametrize(
    ("members", "values"),
    [
        ({"body": "a whole secret", "secret_body": True}, {b"a whole secret"}),
        ({"body": "of-{{attempt}}-ones", "secret_body": True}, {b"of-1-ones"}),
        ({"body": "", "secret_body": True}, set()),
        ({"body": None, "secret_body": True}, set()),
        ({"body": "x{{attempt}}", "headers": {"Cookie": "sweet"}}, {b"sweet"}),
    ],
)
def test_a_secret_body_is_looked_for_as_it_is_sent(
    members: dict[str, Any], values: set[bytes]
) -> None:
    secrets = request_of(**members).secrets
    assert secrets is not None
    assert values <= set(secrets.values)
    assert bool(secrets.values) == bool(values)
    assert not any(b"{{" in one for one in secrets.values)
    assert secrets.is_body_secret == members.get("secret_body", False)


@pytest.mark.spec("X2")
@pytest.mark.parametrize(
    ("body", "secrets", "shown"),
    [
        (None, None, None),
        (b"plain", None, "plain"),
        (b"has key-of-mine", Secrets(frozenset(), (b"key-of-mine",)), "has ***"),
        (b"anything", Secrets(frozenset(), (), is_body_secret=True), "***"),
        (b"half \xff", None, "half \ufffd"),
    ],
)
def test_a_body_is_stored_without_what_is_secret(
    body: bytes | None, secrets: Secrets | None, shown: str | None
) -> None:
    assert shown_body(Request("POST", URL, body=body, secrets=secrets)) == shown


@pytest.mark.spec("X2")
def test_what_a_target_repeats_of_its_secrets_is_masked() -> None:
    secrets = Secrets(frozenset(), (b"key-of-mine",))
    reply = Reply("answered", Timing(total_ms=2.0), 200, b"your key-of-mine", error=None)
    masked = msgspec.structs.replace(reply, body=b"your ***")
    assert shown_reply(reply, secrets) == masked
    failed = Reply("unreachable", Timing(), body=b"key-of", truncated=True, error="no key-of-mine!")
    assert shown_reply(failed, secrets) == msgspec.structs.replace(
        failed, body=b"***", error="no ***!"
    )
