"""A worker that renders pictures and counts words, within the capacity the server grants.

    ksana serve
    python examples/queue_worker/worker.py
    python examples/queue_worker/submit.py

Rendering costs 30 units of the server's capacity, counting 1. However many workers run, on however
many machines, the jobs that run at once never cost more than the capacity: the rest waits, by
priority and age.
"""

import asyncio
import os

import msgspec

from ksana.client import Fail, JobContext, Retry, Worker

STEPS = 20

worker = Worker(
    os.environ.get("KSANA_URL", "http://127.0.0.1:7100"),
    "visuals",
    concurrency=8,
    capabilities={"gpu_available": False},
    api_key=os.environ.get("KSANA_API_KEY"),
)


class Picture(msgspec.Struct):
    """What a render job asks for."""

    prompt: str
    width: int = 512
    height: int = 512


@worker.job("render_image", payload_type=Picture)
async def render_image(ctx: JobContext) -> dict[str, str]:
    """Render in steps, telling how far it is, and stop when the job is cancelled."""
    picture: Picture = ctx.payload
    if not picture.prompt:
        raise Fail("a picture needs a prompt")  # no further attempt would help
    for step in range(1, STEPS + 1):
        ctx.raise_if_cancelled()
        await asyncio.sleep(0.005)  # the rendering
        ctx.progress(step / STEPS, f"step {step} of {STEPS}")
    ctx.metrics["pixels"] = picture.width * picture.height
    return {"path": f"/pictures/{ctx.job.job_id}.jpg"}


@worker.job("count_words")
def count_words(ctx: JobContext) -> dict[str, int]:
    """Sync handlers run in a thread: they may block without holding up anything else."""
    text = ctx.payload.get("text")
    if text is None:
        raise Retry("the text is not there yet")  # the server tries again while attempts are left
    return {"words": len(text.split())}


if __name__ == "__main__":
    worker.serve()
