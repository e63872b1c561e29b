"""Actions performed by a webhook: the job and its object go out as JSON, and what the answer says
is what became of them."""

import asyncio
from collections.abc import Callable

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import Micros
from ksana.domain.governance.records import GovernanceJob, GovernedObject
from ksana.engine.governance.performing import Perform, Performed, read_answer, tell
from ksana.ports.caller import Caller, Reply, Request

_encode = msgspec.json.Encoder().encode


def perform_by_webhook(
    url: str, find_caller: Callable[[], Caller], clock: Clock, perform_us: Micros
) -> Perform:
    """An action as one POST to `url`. `find_caller` answers the Caller, on the loop. Nothing is
    sent once the time to perform it is over: another worker may have the job by then."""

    async def perform(job: GovernanceJob, governed: GovernedObject | None) -> Performed:
        until = clock.boottime() + perform_us
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request = Request(
            method="POST",
            url=url,
            headers=(
                ("Content-Type", "application/json"),
                ("X-Ksana-Job-Id", job.job_id),
                ("X-Ksana-Attempt", str(job.attempt + 1)),
            ),
            body=_encode(tell(job, governed)),
            timeout_us=perform_us,
            may_resend=False,
        )

        def done(got: Reply) -> None:
            if not reply.done():
                reply.set_result(got)

        call = find_caller().call(request, done, lambda: clock.boottime() < until)
        try:
            return read_reply(await reply)
        finally:
            call.abort()

    return perform


def read_reply(reply: Reply) -> Performed:
    """What an answer says. A success is a 2xx with no body, or with `"result":"succeeded"`."""
    if reply.kind != "answered" or reply.status is None:
        return Performed(error=reply.error or reply.kind)
    if not 200 <= reply.status < 300:
        return Performed(error=f"the webhook answered {reply.status}")
    if not reply.body:
        return Performed()
    try:
        return read_answer(msgspec.json.decode(reply.body))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Performed(error=f"the webhook's answer cannot be read: {error}")
