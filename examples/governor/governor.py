"""A worker that looks after what an agent believes: it revalidates cognitions and decays memories.

    ksana serve
    python examples/governor/governor.py
    python examples/governor/believe.py

The server says when something falls due, keeps the budget of what is uncertain, and writes the
audit. The worker says what is true.
"""

import os
from datetime import timedelta

from ksana.client import Done, Fail, GovernanceContext, Governor, RetryAfter

EVIDENCE = {"the sky is blue": ["photo:1", "photo:2"], "it rains": []}
"""What can be found out. Of what is not here the source does not answer."""

governor = Governor(
    os.environ.get("KSANA_URL", "http://127.0.0.1:7100"),
    concurrency=8,
    wait_sec=1.0,
    api_key=os.environ.get("KSANA_API_KEY"),
)


@governor.action("revalidate", deadline_sec=60)
async def revalidate(ctx: GovernanceContext) -> Done:
    """Look for evidence. What has some is supported; for what has none we look again soon, as often
    as its budget allows."""
    cognition = await ctx.find_object()
    if cognition is None:
        raise Fail("nobody registered it")  # no further attempt would help
    found = EVIDENCE.get(cognition.data["text"])
    if found is None:
        raise RetryAfter(60, "the source does not answer")
    if not found:
        return Done(next_action_at=timedelta(seconds=1))
    return Done(
        next_action_at=timedelta(days=7),
        changes={"status": "active", "epistemic_state": "supported"},
        evidence_refs=found,
    )


@governor.action("archive")
def archive(ctx: GovernanceContext) -> None:
    """Sync handlers run in a thread. What is archived here moves to `archived` by itself."""
    known = ctx.find_object_in_thread()
    print("archiving", ctx.object_id, "version", None if known is None else known.version)


if __name__ == "__main__":
    governor.serve()
