"""A node with two models, in Python.

    ksana serve
    python examples/nodes/node.py
    python examples/nodes/session.py

The node connects to the server and is given jobs: nobody needs to reach it, so it may stand behind
any firewall.
"""

import asyncio
import os

from ksana.client import Node, NodeJobContext, NodeJobError

node = Node(
    os.environ.get("KSANA_URL", "http://127.0.0.1:7100"),
    slots=4,
    labels={"language": "python"},
    api_key=os.environ.get("KSANA_API_KEY"),
)


@node.model("spell")
async def spell(ctx: NodeJobContext) -> dict[str, str]:
    """Send each word as it is ready, and the whole at the end."""
    words = str(ctx.payload.get("text", "")).split()
    if not words:
        raise NodeJobError("EMPTY_TEXT", "there is nothing to spell")
    for word in words:
        await asyncio.sleep(0.01)  # the work; a cancelled job ends here
        ctx.partial({"word": word.upper()})
    return {"text": " ".join(words).upper()}


@node.model("count")
def count(ctx: NodeJobContext) -> dict[str, int]:
    """Sync handlers run in a thread: they may block without holding up anything else."""
    return {"characters": len(ctx.payload["text"])}


if __name__ == "__main__":
    node.serve()  # until SIGTERM or SIGINT: then what runs is finished
