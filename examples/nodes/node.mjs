// @ts-check
/**
 * A node in JavaScript, with TypeScript's types in comments (`tsc --checkJs` reads them) and no package.
 *
 *     node examples/nodes/node.mjs                            # Node 22 and later
 *     node --experimental-websocket examples/nodes/node.mjs   # Node 20
 *
 * It shows that the protocol stands on its own: docs/reference/node-protocol.md is all it needs.
 *
 * @typedef {{ type: "node_register_ack", node_id: string, heartbeat_sec: number }} RegisterAck
 * @typedef {{ type: "job_assign", job_id: string, attempt_id: number, model: string, payload: any }} JobAssign
 * @typedef {{ type: "job_cancel", job_id: string, attempt_id: number, reason: string }} JobCancel
 * @typedef {{ type: "error", code: string, message: string }} ErrorFrame
 * @typedef {{ type: "ping", id: string }} Ping
 * @typedef {RegisterAck | JobAssign | JobCancel | ErrorFrame | Ping} Frame
 * @typedef {(payload: any, partial: (data: unknown) => void, signal: AbortSignal) => unknown} Handler
 */

/** @type {Record<string, Handler>} */
const models = {
  reverse(payload, partial) {
    if (typeof payload.text !== "string") throw new Error("there is no text");
    const words = payload.text.split(" ");
    for (const word of words) partial({ word: [...word].reverse().join("") });
    return { text: [...words.join(" ")].reverse().join("") };
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
let stopping = false;
let failures = 0;
/** @type {WebSocket | undefined} */
let socket;
/** @type {Map<string, AbortController>} */
const running = new Map();

function connect() {
  // Node's own WebSocket takes headers beside the standard's arguments.
  const opened = new WebSocket(url, /** @type {any} */ ({ headers: key ? { authorization: `Bearer ${key}` } : {} }));
  socket = opened;
  /** @type {NodeJS.Timeout | undefined} */
  let heart;
  const send = (/** @type {object} */ frame) => {
    if (opened.readyState === WebSocket.OPEN) opened.send(JSON.stringify(frame));
  };
  opened.onopen = () => send({ type: "node_register", slots: 4, models: Object.keys(models), labels: { language: "javascript" }, protocol: 1 });
  opened.onmessage = ({ data }) => {
    const frame = /** @type {Frame} */ (JSON.parse(data));
    if (frame.type === "node_register_ack") {
      failures = 0;
      console.log("registered", frame.node_id);
      heart = setInterval(() => send({ type: "node_heartbeat", running: running.size }), frame.heartbeat_sec * 1000);
    } else if (frame.type === "ping") send({ type: "pong", id: frame.id });
    else if (frame.type === "job_assign") work(frame, send);
    else if (frame.type === "job_cancel") running.get(`${frame.job_id}/${frame.attempt_id}`)?.abort(new Error(frame.reason));
    else if (frame.type === "error") console.error(frame.code, frame.message);
  };
  const end = (/** @type {number} */ code) => {
    opened.onerror = opened.onclose = null; // a refused connection has an error, and a close in some versions only
    clearInterval(heart);
    // The server gives these jobs to other nodes now: their results are not sent over a later socket.
    for (const job of running.values()) job.abort(new Error("the connection was lost"));
    if (stopping) return;
    if (forGood.has(code)) process.exit(1);
    const most = Math.min(30_000, 1000 * 2 ** failures++);
    setTimeout(connect, most * (0.25 + 0.75 * Math.random()));
  };
  opened.onclose = ({ code }) => end(code);
  opened.onerror = () => opened.readyState === WebSocket.OPEN || end(1006);
}

/** @param {JobAssign} assign @param {(frame: object) => void} send */
async function work(assign, send) {
  const { job_id, attempt_id } = assign;
  const about = { job_id, attempt_id };
  const job = new AbortController();
  running.set(`${job_id}/${attempt_id}`, job);
  send({ type: "job_ack", ...about });
  let end;
  try {
    const handler = models[assign.model];
    if (!handler) throw Object.assign(new Error("no such model"), { code: "MODEL_NOT_AVAILABLE" });
    send({ type: "job_started", ...about });
    const partial = (/** @type {unknown} */ data) => send({ type: "job_partial", ...about, data });
    end = { success: true, data: (await handler(assign.payload, partial, job.signal)) ?? null };
  } catch (/** @type {any} */ error) {
    end = { success: false, error: { code: error.code ?? "HANDLER_ERROR", message: String(error.message) } };
  }
  running.delete(`${job_id}/${attempt_id}`);
  if (job.signal.aborted) console.log("given up:", job.signal.reason.message);
  else send({ type: "job_result", ...about, ...end });
  if (stopping && running.size === 0) socket?.close(1000);
}

process.on("SIGTERM", () => {
  stopping = true; // offer no model, finish what runs, go
  if (socket?.readyState !== WebSocket.OPEN) process.exit(0);
  socket.send(JSON.stringify({ type: "node_heartbeat", running: running.size, models: [] }));
  if (running.size === 0) socket.close(1000);
});
connect();
