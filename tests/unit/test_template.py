"""Placeholders: one pass, escaped by where they stand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.errors import InvalidError
from ksana.domain.tasks.firing import place_of
from ksana.domain.tasks.records import host_of, is_place
from ksana.domain.tasks.template import (
    NAMES,
    check_template,
    fill_body,
    fill_header,
    fill_url,
    looks_like_json,
)
from tests.unit.task_ground import a_definition

pytestmark = pytest.mark.spec("C9")

VALUES = {name: f"<{name}>" for name in NAMES} | {"attempt": 'a "b" é/\n{{run_id}}'}


def test_holes_are_filled_once_and_what_is_no_hole_stays() -> None:
    text = "a{{run_id}}b{{ task_id }}c{{other}}d{run_id}e{{attempt}}f"
    filled = 'a<run_id>b<task_id>c{{other}}d{run_id}ea "b" é/\n{{run_id}}f'
    assert fill_body(text, VALUES, is_json=False) == filled
    assert fill_body("{{run_id}}", {}, is_json=False) == "{{run_id}}"
    assert fill_body("{{run_id}}{{run_id}}", VALUES, is_json=False) == "<run_id><run_id>"


def test_a_value_is_escaped_by_where_it_stands() -> None:
    assert fill_url("http://x/{{attempt}}?{{run_id}}", VALUES) == (
        "http://x/a%20%22b%22%20%C3%A9%2F%0A%7B%7Brun_id%7D%7D?%3Crun_id%3E"
    )
    assert fill_header("v {{attempt}}", VALUES) == 'v a "b" é/{{run_id}}'
    assert fill_header("{{run_id}}", {"run_id": "a\x00\x1f \x7fb"}) == "a b"
    body = fill_body('{"v":"{{attempt}}"}', VALUES, is_json=True)
    assert json.loads(body) == {"v": VALUES["attempt"]}
    assert "é" in body


@given(st.text(max_size=20))
def test_whatever_a_value_holds_json_stays_json(value: str) -> None:
    value = value.encode("utf-8", "replace").decode()
    body = fill_body('["{{task_name}}", 1]', {"task_name": value}, is_json=True)
    assert json.loads(body) == [value, 1]


@pytest.mark.parametrize("text", ["http://x/{run_id}", "", "<filled>"])
def test_a_text_without_holes_is_left_as_it_is(text: str) -> None:
    assert fill_url(text, VALUES) is text
    assert fill_header(text, VALUES) is text
    assert fill_body(text, VALUES, is_json=True) is text


def test_what_the_service_fills_in_is_a_json_text_of_job_and_run() -> None:
    hole = '"<filled-by-service>"'
    text = f'{{"job_id" : {hole},"run_id":{hole},"x":{hole}}}'
    values = {"job_id": 'j"1', "run_id": "r"}
    assert fill_body(text, values, is_json=False) == (
        '{"job_id" : "j\\"1","run_id":"r","x":"<filled-by-service>"}'
    )
    both = fill_body('{"run_id":"<filled-by-service>","a":"{{job_id}}"}', values, is_json=True)
    assert json.loads(both) == {"run_id": "r", "a": 'j"1'}


@pytest.mark.parametrize("text", ["{{run_id}}", "{{ callback_token }}", "no {hole}", "{{", "{{}"])
def test_known_placeholders_are_accepted(text: str) -> None:
    check_template(text, "body")


@pytest.mark.parametrize("text", ["{{ nope }}", "{{}}", "{{run_id.x}}", "{{RUN_ID}}"])
def test_unknown_placeholders_are_refused(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check_template(f"a {text}", "body")
    assert caught.value.field == "body"
    assert text.strip("{} ")[:40] in str(caught.value)


@pytest.mark.parametrize(
    ("body", "is_json"),
    [
        ('  {"a":1}', True),
        ("[", True),
        ('"text"', True),
        (" true ", True),
        ("false", True),
        ("null\n", True),
        ("truely", False),
        ("a=b", False),
        ("", False),
        ("1", False),
    ],
)
def test_a_body_that_looks_like_json_is_sent_as_json(body: str, is_json: bool) -> None:
    assert looks_like_json(body) is is_json


@pytest.mark.spec("C13")
@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Host:80/path", "host:80"),
        ("http://user@host?q=/a@b", "host"),
        ("https://host#f", "host"),
        ("host/path", "host"),
        ("http://{{run_id}}.x/", "{{run_id}}.x"),
        ("http://" + "a" * 300, "a" * 255),
    ],
)
def test_calls_are_counted_by_the_host_of_the_target(url: str, host: str) -> None:
    assert host_of(url) == host
    assert place_of(a_definition(target_url=url)) == host
    assert not is_place(host)


def test_runs_that_no_host_is_called_for_have_a_place_of_their_own() -> None:
    assert place_of(a_definition(type="queue")) == "@queue"
    assert is_place("@node")
    assert not is_place("")
