// graphile-worker: `tuned` as its page on performance says, or at its defaults, where each job is fetched by itself.
"use strict";

const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { act, addBatches, addOneByOne, count, tell, tellOften, timeStarts } = require("./counting.js");

const connectionString = process.env.PEER_STORE;
const logger = new Logger(() => () => {});
const TUNED = { localQueue: { size: 1000 }, completeJobBatchDelay: 0, failJobBatchDelay: 0, maxPoolSize: 20 };

const work = (noop, concurrentJobs, settings) =>
  run({ preset: { worker: { connectionString, concurrentJobs, logger, ...settings } }, taskList: { noop } });

const utilsOf = async () => {
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  return utils;
};

act({
  async fill(options) {
    const utils = await utilsOf();
    await addBatches(options, (size) =>
      utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: { n: 1 } }))));
    await utils.release();
  },
  async add(options) {
    const utils = await utilsOf();
    await addOneByOne(options, () => utils.addJob("noop", { n: 1 }));
    await utils.release();
  },
  async drain({ in_flight }) {
    await work(count, in_flight, TUNED);
    tellOften();
  },
  async single({ in_flight }) {
    await work(count, in_flight, { maxPoolSize: Math.max(10, in_flight + 2) });
    tellOften();
  },
  async latency(options) {
    const utils = await utilsOf();
    let seen = () => {};
    // A local queue would hold jobs back: at its defaults it starts them soonest.
    const runner = await work((payload) => seen(payload.n), 10, { maxPoolSize: 12 });
    await timeStarts(options, (n) => utils.addJob("noop", { n }), (handler) => { seen = handler; });
    await runner.stop();
    await utils.release();
    process.exit(0);
  },
  async hold({ in_flight }) {
    await work(() => new Promise(() => {}), in_flight, {});
    tell({ ready: true });
  },
});
