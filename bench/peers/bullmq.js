// BullMQ on a Redis that keeps nothing: its fastest.
"use strict";

const { Queue, Worker } = require("bullmq");
const { act, addBatches, addOneByOne, count, tell, tellOften, timeStarts } = require("./counting.js");

const url = new URL(process.env.PEER_STORE);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const name = process.env.PEER_NAME || "peer";
const OPTIONS = { removeOnComplete: true };

const work = (handler, concurrency) =>
  new Worker(name, handler, { connection, concurrency, removeOnComplete: { count: 0 } }).waitUntilReady();

act({
  async fill(options) {
    const queue = new Queue(name, { connection });
    await addBatches(options, (size) =>
      queue.addBulk(Array.from({ length: size }, () => ({ name: "noop", data: { n: 1 }, opts: OPTIONS }))));
    await queue.close();
  },
  async add(options) {
    const queue = new Queue(name, { connection });
    await addOneByOne(options, () => queue.add("noop", { n: 1 }, OPTIONS));
    await queue.close();
  },
  async drain({ in_flight }) {
    await work(async () => count(), in_flight);
    tellOften();
  },
  async latency(options) {
    const queue = new Queue(name, { connection });
    let seen = () => {};
    await work(async (job) => seen(job.data.n), 10);
    await timeStarts(options, (n) => queue.add("noop", { n }, OPTIONS), (handler) => { seen = handler; });
    process.exit(0);
  },
  async hold({ in_flight }) {
    await work(() => new Promise(() => {}), in_flight);
    tell({ ready: true });
  },
});
