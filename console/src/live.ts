// Events as they happen, read from the stream of the API. They are counted, not kept: at any pace pages are told at
// most once a second that something changed, and ask for what they show.
import { effect, signal } from "@preact/signals";
import { address, headers, key, noteRefusal, refused } from "./api";

export interface LiveEvent {
  id: number;
  ts: string;
  entity_type: string;
  entity_id: string;
  type: string;
  data: Record<string, unknown> | null;
}

const TELL_EVERY_MS = 1000;
const POLL_EVERY_MS = 5000;

export const paused = signal(false);
export const connection = signal<"connecting" | "live" | "polling" | "off">("connecting");
/** How often each kind of entity changed, as far as pages were told. */
export const beats = signal<Record<string, number>>({});
/** Counts up when everything may have changed: after a new connection. */
export const anew = signal(0);

let counted: Record<string, number> = {};

function note(event: LiveEvent): void {
  counted[event.entity_type] = (counted[event.entity_type] ?? 0) + 1;
}

setInterval(() => {
  if (paused.value || Object.keys(counted).length === 0) return;
  const next = { ...beats.value };
  for (const [kind, count] of Object.entries(counted)) next[kind] = (next[kind] ?? 0) + count;
  counted = {};
  beats.value = next;
}, TELL_EVERY_MS);

async function read(abort: AbortSignal): Promise<void> {
  const response = await fetch(address("api/v1/events/stream"), { headers: headers(), credentials: "omit", cache: "no-store", signal: abort });
  if (response.status === 403) return poll(abort);
  if (!response.ok || !response.body) {
    noteRefusal(response.status);
    throw new Error(String(response.status));
  }
  connection.value = "live";
  anew.value++;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) readBlock(block);
  }
}

function readBlock(block: string): void {
  for (const line of block.split("\n")) {
    if (line.startsWith("data: ")) note(JSON.parse(line.slice(6)) as LiveEvent);
  }
}

/** A key that may not read events: look again every few seconds. */
async function poll(abort: AbortSignal): Promise<void> {
  connection.value = "polling";
  while (!abort.aborted) {
    anew.value++;
    await rest(POLL_EVERY_MS, abort);
  }
}

function rest(ms: number, abort: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    abort.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

async function follow(abort: AbortSignal): Promise<void> {
  let pause = 1000;
  while (!abort.aborted) {
    connection.value = "connecting";
    const began = Date.now();
    try {
      await read(abort);
    } catch {
      if (abort.aborted) return;
    }
    connection.value = "off";
    // A stream that lasted starts over at once; one that is refused is asked for ever more rarely.
    pause = Date.now() - began > 10_000 ? 1000 : Math.min(pause * 2, 30_000);
    await rest(pause, abort);
  }
}

let following: AbortController | null = null;

/** Follow the stream while the page is seen, not paused, and allowed to. */
export function startLive(): void {
  const visible = signal(!document.hidden);
  document.addEventListener("visibilitychange", () => {
    visible.value = !document.hidden;
  });
  effect(() => {
    void key.value;
    const wanted = visible.value && !paused.value && refused.value === null;
    following?.abort();
    following = null;
    counted = {};
    if (!wanted) return;
    following = new AbortController();
    void follow(following.signal);
  });
}
