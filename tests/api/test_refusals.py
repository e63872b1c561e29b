"""Bad input of every kind ends in a 4xx with the one error body."""

import gzip
from typing import Any

import httpx
import msgspec
import pytest

from tests.api.ground import CoreServices, client_of

THINGS = "/api/v1/things"
JSON = {"content-type": "application/json"}


def check_refusal(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert answer.headers["content-type"] == "application/json"
    assert body["message"] == body["detail"]
    assert body["message"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


async def post(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await client.post(THINGS, content=body, headers=JSON)


@pytest.mark.fault("F53")
@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nul",
        b'{"name":"a"} x',
        b'{"name":"a",}',
        b"\xef\xbb\xbf{}",
        b'{"name":"\xff"}',
        b'{"name":"a","payload":"\xff"}',
        b'{"name":"a","payload":"\\ud800"}',
        b'{"name":"a\x00"}',
        b'{"name":"a',
        b"\x00",
        b"",
        b"NaN",
        b'{"name":"a","payload":' + b"[" * 65 + b"]" * 65 + b"}",
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b'"' + b'\\"' * 400_000,
        b"[" * 100 + b'"\\',
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_what_is_not_json_is_refused_as_such(client: httpx.AsyncClient, body: bytes) -> None:
    check_refusal(await post(client, body), 400, "INVALID_JSON")


@pytest.mark.spec("X8", "X9")
@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (
            {"name": "a", "colour": 1},
            "colour",
            "allowed: headers, mode, name, payload, schedule, steps",
        ),
        ({}, "name", "needed"),
        ({"name": 7}, "name", 'must be a text, not 7: write "7" in quotes'),
        ({"name": ""}, "name", "length >= 1"),
        ({"name": "x" * 17}, "name", "length <= 16"),
        ({"name": "a", "mode": "medium"}, "mode", "allowed: fast, slow"),
        (
            {"name": "a", "schedule": {"kind": "every", "every": "x"}},
            "schedule.every",
            "must be a whole number",
        ),
        (
            {"name": "a", "schedule": {"kind": "every", "every": 1.5}},
            "schedule.every",
            "must be a whole number",
        ),
        (
            {"name": "a", "schedule": {"kind": "cron", "expr": "x", "y": 1}},
            "schedule.y",
            "allowed: every, expr, kind",
        ),
        ({"name": "a", "schedule": {"kind": "seldom"}}, "schedule.kind", "allowed: cron, every"),
        ({"name": "a", "schedule": {}}, "schedule.kind", "needed"),
        ({"name": "a", "headers": {"x": 1}}, "headers.x", "must be a text, not 1"),
        ({"name": "a", "steps": [1, None]}, "steps[1]", "must be a whole number, not null"),
        ({"name": "a", "payload": {"deep": ["x\0y"]}}, "payload.deep[0]", "NUL"),
        ({"name": "a\0"}, "name", "NUL"),
        ([], None, "the body must be an object"),
        ("text", None, "the body must be an object"),
        (None, None, "the body must be an object"),
    ],
)
async def test_a_wrong_member_is_named_with_what_is_allowed(
    client: httpx.AsyncClient, body: Any, field: str | None, words: str
) -> None:
    told = check_refusal(await post(client, msgspec.json.encode(body)), 400, "INVALID_ARGUMENT")
    assert told.get("field") == field
    assert words.lower() in told["message"].lower()


@pytest.mark.spec("X9")
async def test_free_members_are_kept_as_sent_and_server_owned_ones_ignored(
    client: httpx.AsyncClient,
) -> None:
    raw = (
        b'{"name":"a","id":9,"created_at":"x",'
        b'"payload":{"n":12345678901234567890123,"text":"\\\\u0000 \xe5\x88\xb9"}}'
    )
    answer = await post(client, raw)
    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/things/1"
    assert b'{"n":12345678901234567890123,"text":"\\\\u0000 \xe5\x88\xb9"}' in answer.content


@pytest.mark.fault("F53")
@pytest.mark.spec("X13")
async def test_nesting_up_to_the_limit_and_brackets_inside_text_pass(
    client: httpx.AsyncClient,
) -> None:
    deep = b'{"name":"a","payload":' + b"[" * 63 + b"]" * 63 + b"}"
    wide = b'{"name":"a","payload":[' + b",".join([b"[]"] * 5000) + b"]}"
    text = b'{"name":"a","payload":"' + b'[{\\"' * 500 + b'"}'
    for body in (deep, wide, text):
        assert (await post(client, body)).status_code == 201


@pytest.mark.spec("X9")
async def test_an_action_call_needs_no_body(client: httpx.AsyncClient) -> None:
    assert (await client.post(f"{THINGS}/3/pause")).json() == {"reason": "none given"}
    assert (await client.post(f"{THINGS}/3/pause", json={"reason": "r"})).json() == {"reason": "r"}
    told = check_refusal(
        await client.post(f"{THINGS}/3/pause", json={"why": "r"}), 400, "INVALID_ARGUMENT"
    )
    assert told["field"] == "why"


@pytest.mark.spec("X8", "X13")
async def test_a_body_over_the_limit_is_refused_by_its_length_and_while_it_streams(
    client: httpx.AsyncClient,
) -> None:
    body = b'{"name":"' + b"x" * 2 * 1024 * 1024 + b'"}'
    told = check_refusal(await post(client, body), 413, "TOO_LARGE")
    assert "1048576" in told["message"]

    async def parts() -> Any:
        for at in range(0, len(body), 65536):
            yield body[at : at + 65536]

    check_refusal(await client.post(THINGS, content=parts(), headers=JSON), 413, "TOO_LARGE")
    lie = {"content-type": "application/json", "content-length": "9" * 30}
    check_refusal(await client.post(THINGS, content=parts(), headers=lie), 413, "TOO_LARGE")
    check_refusal(await client.request("GET", THINGS, content=body), 413, "TOO_LARGE")


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
async def test_another_media_type_is_415(client: httpx.AsyncClient, kind: str) -> None:
    answer = await client.post(THINGS, content=b'{"name":"a"}', headers={"content-type": kind})
    assert "application/json" in check_refusal(answer, 415, "UNSUPPORTED_MEDIA_TYPE")["message"]


@pytest.mark.spec("X8")
async def test_a_packed_body_is_415_and_says_why(client: httpx.AsyncClient) -> None:
    packed = gzip.compress(b'{"name":"a"}')
    answer = await client.post(THINGS, content=packed, headers={**JSON, "content-encoding": "GZip"})
    said = check_refusal(answer, 415, "UNSUPPORTED_MEDIA_TYPE")["message"]
    assert said == "gzip is not unpacked here: send the body without it"
    for encoding in ("identity", ""):
        headers = {**JSON, "content-encoding": encoding}
        answer = await client.post(THINGS, content=packed, headers=headers)
        assert "not UTF-8" in check_refusal(answer, 400, "INVALID_JSON")["message"]


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "application/vnd.x+json", "Application/JSON", None]
)
async def test_json_and_its_relatives_and_no_type_at_all_are_read(
    client: httpx.AsyncClient, kind: str | None
) -> None:
    headers = {"content-type": kind} if kind else {}
    assert (await client.post(THINGS, content=b'{"name":"a"}', headers=headers)).status_code == 201


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    "path", ["/nothing", "/api/v1/things/", "/api/v1/things/1/2/3", "/api/v1//things", "/%zz"]
)
async def test_an_unknown_path_is_404_in_the_same_body(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.get(path)
    assert answer.status_code in (400, 404)
    check_refusal(answer, answer.status_code, answer.json()["code"])
    assert answer.json()["code"] in ("NOT_FOUND", "INVALID_ID")


@pytest.mark.spec("X8")
async def test_an_unknown_method_is_405_and_says_what_is_allowed(client: httpx.AsyncClient) -> None:
    answer = await client.put(THINGS)
    check_refusal(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    answer = await client.request("BREW", f"{THINGS}/3")
    check_refusal(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "DELETE, GET, HEAD"
    assert (await client.head(THINGS)).status_code == 200


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    "text", ["abc", "0", "-1", "1.0", "9007199254740992", "1e3", "%00", "%ff", "١"]
)
async def test_an_id_that_cannot_be_one_is_invalid(client: httpx.AsyncClient, text: str) -> None:
    check_refusal(await client.get(f"{THINGS}/{text}"), 400, "INVALID_ID")
    check_refusal(await client.get(f"/api/v1/jobs/{text}"), 400, "INVALID_ID")


async def test_literals_win_over_parameters_and_escapes_are_read_by_segment(
    client: httpx.AsyncClient,
) -> None:
    told = check_refusal(await client.get(f"{THINGS}/special"), 409, "ILLEGAL_TRANSITION")
    assert told["current"] == {"state": "PAUSED"}
    assert (await client.get("/api/v1/named/a%2Fb%20%E5%88%B9")).json() == {"name": "a/b 刹"}
    uid = "6F1C3C2E-8F0D-4B8E-9D55-0F6B1A2C3D4E"
    assert (await client.get(f"/api/v1/jobs/{uid}")).json() == {"id": uid.lower()}
    assert (await client.delete(f"{THINGS}/3")).status_code == 204


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    ("query", "field"),
    [("page=x", "page"), ("page=0", "page"), ("status=maybe", "status"), ("tag=%00", "tag")],
)
async def test_a_wrong_query_parameter_is_named(
    client: httpx.AsyncClient, query: str, field: str
) -> None:
    assert (
        check_refusal(await client.get(f"{THINGS}?{query}"), 400, "INVALID_ARGUMENT")["field"]
        == field
    )


async def test_query_parameters_are_typed_and_blank_ones_count_as_absent(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get(f"{THINGS}?page=2&tag=a&tag=b&status=")
    assert answer.json() == {"page": 2, "tag": ["a", "b"], "status": None}
    check_refusal(await client.get(f"{THINGS}?tag=%ff"), 400, "INVALID_ARGUMENT")
    check_refusal(
        await client.get(f"{THINGS}?" + "&".join(["tag=a"] * 101)), 400, "INVALID_ARGUMENT"
    )


@pytest.mark.spec("X8")
async def test_a_store_that_is_down_is_503_with_retry_after(client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/v1/down")
    check_refusal(answer, 503, "STORE_DOWN")
    assert answer.headers["retry-after"] == "3"


@pytest.mark.spec("X8")
async def test_a_bug_of_ours_is_500_without_its_text(
    client: httpx.AsyncClient, capsys: Any
) -> None:
    answer = await client.get("/api/v1/broken", headers={"x-request-id": "find-me"})
    check_refusal(answer, 500, "INTERNAL")
    assert "secret" not in answer.text
    logged = capsys.readouterr()
    assert "find-me" in logged.out + logged.err


@pytest.mark.spec("X22")
async def test_a_sane_request_id_is_echoed_and_another_replaced(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health", headers={"x-request-id": "abc 1"})).headers[
        "x-request-id"
    ] == "abc 1"
    made = {(await client.get("/health")).headers["x-request-id"] for _ in range(3)}
    for strange in (b"x" * 129, b"\xff", b"a\tb", b""):
        made.add(
            (await client.get("/health", headers={b"x-request-id": strange})).headers[
                "x-request-id"
            ]
        )
    assert len(made) == 7
    assert all(len(one) == 32 for one in made)


@pytest.mark.spec("X22")
async def test_a_sound_traceparent_is_taken(client: httpx.AsyncClient) -> None:
    async def taken(sent: str) -> Any:
        return (
            await client.get(f"{THINGS}/1", headers={"traceparent": sent, "x-colour": "red"})
        ).json()["trace"]

    sound = f"00-{'a' * 32}-{'b' * 16}-01"
    assert await taken(sound) == sound
    assert await taken(f"01-{'a' * 32}-{'b' * 16}-01-more") == sound
    for bad in (
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"ff-{'a' * 32}-{'b' * 16}-01",
        "x",
        sound + "-x",
    ):
        assert await taken(bad) is None


@pytest.mark.spec("X13")
async def test_an_error_message_is_cut(core: CoreServices) -> None:
    async with client_of(core.app()) as client:
        told = check_refusal(
            await post(client, b'{"' + b"x" * 5000 + b'":1}'), 400, "INVALID_ARGUMENT"
        )
    assert len(told["message"]) == 1024
