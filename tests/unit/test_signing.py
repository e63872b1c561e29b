"""Signatures that the Standard Webhooks libraries accept."""

import base64
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from ksana.base.errors import InvalidError
from ksana.base.instant import SECOND, to_instant
from ksana.domain.tasks.signing import check_secret, sign

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = base64.b64encode(b"another key of some length......").decode()
BODY = '{"run_id":"r","名":"刹那"}'.encode()


@pytest.fixture
def now() -> int:
    return to_instant(datetime.now(UTC))  # the library compares with the machine's clock


@pytest.mark.spec("T10")
@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_"), OTHER])
def test_the_library_verifies_what_we_sign(secret: str, now: int) -> None:
    headers = dict(sign(secret, "msg_1", now, BODY))
    assert Webhook(secret).verify(BODY, headers) == {"run_id": "r", "名": "刹那"}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", headers)


@pytest.mark.spec("T10")
def test_two_keys_sign_side_by_side_while_one_is_replaced(now: int) -> None:
    headers = dict(sign([SECRET, OTHER], "msg_1", now, BODY))
    for secret in (SECRET, OTHER):
        Webhook(secret).verify(BODY, headers)


def test_a_known_signature() -> None:
    headers = dict(
        sign(
            SECRET,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330 * SECOND + 999,
            b'{"test": 2432232314}',
        )
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", ["", "whsec_", "not base64!", "whsec_abc", "ключ", "A" * 1000])
def test_a_secret_that_is_no_key_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check_secret(secret)
    assert caught.value.field == "signing_secret"
    assert not secret or secret == "whsec_" or secret not in caught.value.message


def test_good_secrets() -> None:
    check_secret(SECRET)
    check_secret(OTHER)
