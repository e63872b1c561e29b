/**
 * A node in TypeScript. It shows that the protocol stands on its own: docs/reference/node-protocol.md is all it needs,
 * and `ws` for the socket.
 *
 *     npm ci && npm run build && npm start
 */
import WebSocket from "ws";

type About = { job_id: string; attempt_id: number };
type Assign = About & { type: "job_assign"; model: string; deadline: string; payload: unknown };
type FromServer =
  | { type: "node_register_ack"; node_id: string; heartbeat_sec: number }
  | Assign
  | (About & { type: "job_cancel"; reason: string })
  | { type: "error"; code: string; message: string }
  | { type: "ping"; id: string }
  | { type: "pong"; id: string };
type ToServer =
  | { type: "node_register"; slots: number; models: string[]; labels: Record<string, string>; protocol: 1 }
  | { type: "node_heartbeat"; running: number; load?: number; models?: string[] }
  | (About & { type: "job_ack" | "job_started" })
  | (About & { type: "job_partial"; data: unknown })
  | (About & { type: "job_result"; success: true; data: unknown })
  | (About & { type: "job_result"; success: false; error: { code: string; message: string } })
  | { type: "pong"; id: string };
type Handler = (payload: unknown, partial: (data: unknown) => void, signal: AbortSignal) => unknown;

/** A failure with a code of its own, as the session sees it. */
class JobError extends Error {
  constructor(readonly code: string, message: string) {
    super(message);
  }
}

const models: Record<string, Handler> = {
  reverse(payload, partial) {
    const text = (payload as { text?: unknown }).text;
    if (typeof text !== "string") throw new Error("there is no text");
    const turned = text.split(" ").map((word) => [...word].reverse().join(""));
    for (const word of turned) partial({ word });
    return { text: turned.reverse().join(" ") };
  },
  wait: (_, partial, signal) =>
    new Promise((_, reject) => {
      partial("waiting");
      signal.addEventListener("abort", () => reject(signal.reason));
    }),
};

const url = (process.env.KSANA_URL ?? "http://127.0.0.1:7100").replace(/^http/, "ws") + "/ws/node";
const key = process.env.KSANA_API_KEY;
const forGood = new Set([4010, 4012]); // another node has the id; the key was revoked
const running = new Map<string, AbortController>();
let stopping = false;
let failures = 0;
let socket: WebSocket;

function send(to: WebSocket, frame: ToServer): void {
  if (to.readyState === WebSocket.OPEN) to.send(JSON.stringify(frame));
}

function connect(): void {
  const opened = (socket = new WebSocket(url, { headers: key ? { authorization: `Bearer ${key}` } : {} }));
  let heart: NodeJS.Timeout | undefined;
  opened.on("open", () => {
    send(opened, { type: "node_register", slots: 4, models: Object.keys(models), labels: { language: "typescript" }, protocol: 1 });
  });
  opened.on("message", (data) => {
    const frame = JSON.parse(String(data)) as FromServer;
    if (frame.type === "node_register_ack") {
      failures = 0;
      console.log("registered", frame.node_id);
      heart = setInterval(() => send(opened, { type: "node_heartbeat", running: running.size }), frame.heartbeat_sec * 1000);
    } else if (frame.type === "ping") send(opened, { type: "pong", id: frame.id });
    else if (frame.type === "job_assign") void work(opened, frame);
    else if (frame.type === "job_cancel") running.get(`${frame.job_id}/${frame.attempt_id}`)?.abort(new Error(frame.reason));
    else if (frame.type === "error") console.error(frame.code, frame.message);
  });
  opened.on("error", (error) => console.error(error.message)); // a close follows
  opened.on("close", (code) => {
    clearInterval(heart);
    // The server gives these jobs to other nodes now: their results are not sent over a later socket.
    for (const job of running.values()) job.abort(new Error("the connection was lost"));
    if (stopping) return;
    if (forGood.has(code)) process.exit(1);
    const most = Math.min(30_000, 1000 * 2 ** failures++);
    setTimeout(connect, most * (0.25 + 0.75 * Math.random()));
  });
}

async function work(from: WebSocket, assign: Assign): Promise<void> {
  const about = { job_id: assign.job_id, attempt_id: assign.attempt_id };
  const name = `${assign.job_id}/${assign.attempt_id}`;
  const job = new AbortController();
  running.set(name, job);
  send(from, { type: "job_ack", ...about });
  let result: ToServer;
  try {
    const handler = models[assign.model];
    if (!handler) throw new JobError("MODEL_NOT_AVAILABLE", "no such model");
    send(from, { type: "job_started", ...about });
    const partial = (data: unknown) => send(from, { type: "job_partial", ...about, data });
    const data = (await handler(assign.payload, partial, job.signal)) ?? null;
    result = { type: "job_result", ...about, success: true, data };
  } catch (error) {
    const code = error instanceof JobError ? error.code : "HANDLER_ERROR";
    const message = error instanceof Error ? error.message : String(error);
    result = { type: "job_result", ...about, success: false, error: { code, message } };
  }
  running.delete(name);
  if (job.signal.aborted) console.log("given up:", (job.signal.reason as Error).message);
  else send(from, result);
  if (stopping && running.size === 0) socket.close(1000);
}

process.on("SIGTERM", () => {
  stopping = true; // offer no model, finish what runs, go
  if (socket.readyState !== WebSocket.OPEN) process.exit(0);
  send(socket, { type: "node_heartbeat", running: running.size, models: [] });
  if (running.size === 0) socket.close(1000);
});
connect();
