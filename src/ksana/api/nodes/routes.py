"""The routes of the nodes surface: two sockets, node jobs, nodes, the cluster."""

from typing import Any

from ksana.api.core.routing import Answer, AnyRoute, Call, Handler, Route, SocketRoute
from ksana.api.nodes import asyncapi
from ksana.api.nodes.answers import ClusterShown, LetterReplayed
from ksana.api.nodes.key_watch import SCOPE, KeyWatch
from ksana.api.nodes.node_socket import NodeSocket
from ksana.api.nodes.session_socket import SessionSocket
from ksana.api.nodes.shapes import (
    CancelNodeJob,
    LetterPage,
    ListLetters,
    ListNodes,
    ListSessions,
    NodeJobAccepted,
    NodeJobShown,
    NodePage,
    NodeShown,
    SessionPage,
    SubmitNodeJob,
    show_cluster,
    show_job,
    show_letter,
    show_node,
    show_session,
)
from ksana.api.nodes.sockets import SocketBounds, WriteBudget
from ksana.domain.nodes.frames import AskJob
from ksana.engine.nodes.engine import NodesEngine
from ksana.service.nodes.cluster import ClusterService
from ksana.service.nodes.jobs import NodeJobService

_JOBS = "/api/v1/node-jobs"
_NODES = "/api/v1/nodes"
_SESSIONS = "/api/v1/sessions"
_CLUSTER = "/api/v1/cluster"
_TAGS = ("nodes",)


def routes(
    engine: NodesEngine,
    service: NodeJobService,
    keys: KeyWatch,
    bounds: SocketBounds | None = None,
    budget: WriteBudget | None = None,
) -> list[AnyRoute]:
    """All of them."""
    cluster = ClusterService(engine)
    bounds, budget = bounds or SocketBounds(), budget or WriteBudget()
    node = NodeSocket(engine, service, keys, bounds, budget)
    session = SessionSocket(engine, service, keys, bounds, budget)
    return [
        SocketRoute("/ws/node", node.serve, scope=SCOPE, summary="Connect a node"),
        SocketRoute("/ws/session", session.serve, scope=SCOPE, summary="Ask for jobs"),
        asyncapi.route(),
        *_job_routes(service),
        *_node_routes(cluster),
        _session_route(cluster),
        *_cluster_routes(cluster),
    ]


def _job_routes(service: NodeJobService) -> list[AnyRoute]:
    async def submit(call: Call, body: SubmitNodeJob) -> Answer:
        ask = AskJob(
            model=body.model,
            request_id=body.request_id,
            labels=body.labels,
            priority=body.priority,
            payload=body.payload,
            wait_sec=body.wait_sec,
            timeout_sec=body.timeout_sec,
        )
        principal, trace = call.principal, call.trace
        created = await service.request(
            ask,
            lambda _: None,
            caller="" if principal is None else principal.key_id,
            trace_id="" if trace is None else trace.trace_id,
        )
        shown = NodeJobAccepted(
            job_id=created.job_id,
            request_id=created.request_id,
            state=created.state,
            durable=created.durable,
            duplicate=created.is_repeat,
        )
        location = f"{_JOBS}/{created.job_id}".encode()
        return Answer(200 if created.is_repeat else 201, shown, ((b"location", location),))

    async def get_job(call: Call) -> NodeJobShown:
        return show_job(await service.get_job(call.params["job_id"]), service.durable)

    async def cancel(call: Call, body: CancelNodeJob) -> NodeJobShown:
        job = await service.cancel_job(call.params["job_id"], reason=body.reason)
        return show_job(job, service.durable)

    return [
        Route(
            "POST",
            _JOBS,
            submit,
            scope="nodes:write",
            summary="Make a node job",
            tags=_TAGS,
            body=SubmitNodeJob,
            answers={201: NodeJobAccepted, 200: NodeJobAccepted},
            answer_headers=("Location",),
        ),
        Route(
            "GET",
            _JOBS + "/{job_id:uuid}",
            get_job,
            scope="nodes:read",
            summary="Look at a node job",
            tags=_TAGS,
            answers={200: NodeJobShown},
        ),
        Route(
            "POST",
            _JOBS + "/{job_id:uuid}/cancel",
            cancel,
            scope="nodes:write",
            summary="Cancel a node job",
            tags=_TAGS,
            body=CancelNodeJob,
            empty_body_ok=True,
            answers={200: NodeJobShown},
        ),
    ]


def _node_routes(cluster: ClusterService) -> list[AnyRoute]:
    async def list_nodes(call: Call) -> NodePage:
        query: ListNodes = call.query
        found = cluster.list_nodes(query.after, query.limit)
        is_full = found.is_cut or len(found) == query.limit
        return NodePage(
            nodes=[show_node(node) for node in found],
            next_after=found[-1].node_id if is_full else None,
        )

    async def get_node(call: Call) -> NodeShown:
        return show_node(cluster.get_node(call.params["node_id"]))

    async def drain(call: Call) -> NodeShown:
        return show_node(await cluster.set_draining(call.params["node_id"], True))

    async def undrain(call: Call) -> NodeShown:
        return show_node(await cluster.set_draining(call.params["node_id"], False))

    one, shown = _NODES + "/{node_id}", {200: NodeShown}
    listing = Route(
        "GET",
        _NODES,
        list_nodes,
        scope="nodes:read",
        summary="List the nodes of all instances",
        tags=_TAGS,
        query=ListNodes,
        answers={200: NodePage},
    )
    return [
        listing,
        _plain("GET", one, get_node, "nodes:read", "Look at a node", shown),
        _plain("POST", one + "/drain", drain, "nodes:admin", "Give a node no more jobs", shown),
        _plain("POST", one + "/undrain", undrain, "nodes:admin", "Give it jobs again", shown),
    ]


def _session_route(cluster: ClusterService) -> Route:
    async def list_sessions(call: Call) -> SessionPage:
        query: ListSessions = call.query
        found, next_after = await cluster.list_sessions(query.after, query.limit)
        return SessionPage(sessions=[show_session(one) for one in found], next_after=next_after)

    return Route(
        "GET",
        _SESSIONS,
        list_sessions,
        scope="nodes:read",
        summary="List the sessions of all instances",
        tags=_TAGS,
        query=ListSessions,
        answers={200: SessionPage},
    )


def _cluster_routes(cluster: ClusterService) -> list[AnyRoute]:
    async def get_cluster(call: Call) -> dict[str, Any]:
        return show_cluster(await cluster.get_status())

    async def list_letters(call: Call) -> LetterPage:
        query: ListLetters = call.query
        found = await cluster.list_letters(query.instance, query.after, query.limit)
        keeper = query.instance or cluster.instance_id
        return LetterPage(
            letters=[show_letter(letter, keeper) for letter in found],
            next_after=found[-1].id if len(found) == query.limit or found.is_cut else None,
        )

    async def replay(call: Call) -> Answer:
        await cluster.replay_letter(call.params["instance"], call.params["id"])
        return Answer(202, {"replayed": True})

    async def delete(call: Call) -> Answer:
        await cluster.delete_letter(call.params["instance"], call.params["id"])
        return Answer(204)

    one = _CLUSTER + "/dlq/{instance}/{id}"
    shown, replayed = {200: ClusterShown}, {202: LetterReplayed}
    listing = Route(
        "GET",
        _CLUSTER + "/dlq",
        list_letters,
        scope="nodes:read",
        summary="List dead letters",
        tags=_TAGS,
        query=ListLetters,
        answers={200: LetterPage},
    )
    return [
        listing,
        _plain("GET", _CLUSTER, get_cluster, "nodes:read", "How the instances fare", shown),
        _plain("POST", one + "/replay", replay, "nodes:admin", "Handle it again", replayed),
        _plain("DELETE", one, delete, "nodes:admin", "Remove a dead letter", {204: None}),
    ]


def _plain(
    method: str, path: str, handler: Handler, scope: str, summary: str, answers: dict[int, Any]
) -> Route:
    """A route without query or body."""
    return Route(method, path, handler, scope=scope, summary=summary, tags=_TAGS, answers=answers)
