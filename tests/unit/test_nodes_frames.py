"""Frames of the node and session protocol."""

import json
from typing import Any

import msgspec
import pytest

from ksana.domain.nodes import events, frames, messages
from ksana.domain.nodes.records import JobOutcome, JobRequest


@pytest.mark.spec("N3")
def test_frames_of_a_node_are_read_by_their_type() -> None:
    def read(text: str) -> Any:
        return frames.from_node.decode(text)

    register = read('{"type":"node_register","slots":2,"models":["echo"],"colour":"red"}')
    assert isinstance(register, frames.NodeRegister)
    assert register.node_id is None  # given by the server
    partial = read('{"type":"asr_partial","job_id":"j","attempt_id":1,"data":{"text":"a"}}')
    assert isinstance(partial, frames.JobPartial)
    assert bytes(partial.data) == b'{"text":"a"}'
    result = read('{"type":"job_result","job_id":"j","attempt_id":2,"success":true,"data":[1, 2]}')
    assert isinstance(result, frames.NodeJobResult)
    assert bytes(result.data) == b"[1, 2]"
    failed = read(
        '{"type":"job_result","job_id":"j","attempt_id":2,"success":false,"error":{"code":"X"}}'
    )
    assert isinstance(failed, frames.NodeJobResult)
    assert failed.error is not None
    assert bytes(failed.data) == b"null"


@pytest.mark.spec("N3", "N4")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"type":"unknown"}',
        '{"type":"node_register"}',
        '{"type":"node_register","slots":0}',
        '{"type":"node_register","slots":1,"node_id":"a b"}',
        '{"type":"node_register","slots":1,"node_id":"{x}"}',
        '{"type":"node_register","slots":1,"models":[""]}',
        '{"type":"node_heartbeat","load":-1}',
        '{"type":"job_ack","job_id":"j"}',
        '{"type":"job_ack","job_id":"j","attempt_id":0}',
        '{"type":"job_result","job_id":"j","attempt_id":1}',
    ],
)
def test_a_frame_that_cannot_be_right_is_refused_by_its_type(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.from_node.decode(text)


@pytest.mark.spec("N4")
def test_a_request_has_the_defaults_of_the_contract() -> None:
    asked = frames.from_session.decode('{"type":"job_request","model":"echo"}')
    assert isinstance(asked, frames.AskJob)
    assert (asked.priority, asked.wait_sec, asked.timeout_sec) == (5, 0.0, None)
    assert bytes(asked.payload) == b"{}"
    for bad in ('"priority":10', '"priority":-1', '"wait_sec":-1', '"timeout_sec":0'):
        with pytest.raises(msgspec.DecodeError):
            frames.from_session.decode('{"type":"job_request","model":"echo",' + bad + "}")


@pytest.mark.spec("N3", "N4")
def test_what_the_server_sends_is_read_back_by_the_client_as_it_was() -> None:
    to_node = [
        frames.NodeRegisterAck(
            node_id="n", instance_id="i", heartbeat_sec=15, dead_after_sec=45, durable=False
        ),
        frames.JobAssign(job_id="j", attempt_id=1, model="echo", deadline="2026-01-01T00:00:00Z"),
        frames.NodeJobCancel(job_id="j", attempt_id=1, reason="canceled"),
        frames.ErrorFrame(code="X", message="m"),
        frames.Ping(id="1"),
    ]
    for frame in to_node:
        assert frames.to_node.decode(frames.encode(frame)) == frame
    to_session = [
        frames.SessionInitAck(session_id="s", instance_id="i", durable=True),
        frames.JobCreated(request_id="r", job_id="j", state="CREATED", durable=False),
        frames.JobUpdate(job_id="j", state="RUNNING", attempt_id=1),
        frames.SessionPartial(job_id="j", attempt_id=1, data=msgspec.Raw(b"1")),
        frames.SessionResult(job_id="j", attempt_id=1, success=True, data=msgspec.Raw(b'"x"')),
    ]
    for each in to_session:
        assert frames.to_session.decode(frames.encode(each)) == each
    created = json.loads(frames.encode(to_session[1]))
    assert created["durable"] is False
    assert created["duplicate"] is False


@pytest.mark.spec("N9")
def test_messages_between_instances_are_read_back_as_they_were() -> None:
    request = JobRequest(job_id="j", model="echo", payload=msgspec.Raw(b'{"a":[1]}'))
    for message in (
        messages.Assign(node_id="n", attempt=2, home="i", deadline_at=5, request=request),
        messages.Finished(
            request=request,
            attempt=1,
            node_id="n",
            outcome=JobOutcome(success=True, data=msgspec.Raw(b"[1]")),
        ),
        messages.Push(session_id="s", frame=msgspec.Raw(b'{"type":"x"}')),
        messages.Probe(owner_kind="node", id="n", token="t", reply_to="i"),
    ):
        assert messages.decode_message(messages.encode_message(message)) == message
    with pytest.raises(msgspec.DecodeError):
        messages.decode_message(b'{"kind":"unknown"}')


@pytest.mark.spec("X11")
def test_every_kind_of_event_is_declared_once_for_an_entity_of_nodes() -> None:
    names = [kind.name for kind in events.KINDS]
    assert len(set(names)) == len(names)
    assert {kind.entity for kind in events.KINDS} == {
        "NODE",
        "SESSION",
        "NODE_JOB",
    }
