// croner: schedules in memory, each a POST over kept connections to an address of its own.
"use strict";

const { Cron } = require("croner");
const { Pool } = require("undici");
const { act, now, tell } = require("./counting.js");

const url = new URL(process.env.PEER_TARGET);

const caller = (connections) => {
  const pool = new Pool(url.origin, { connections, pipelining: 1 });
  return async (n) => {
    const { statusCode, body } = await pool.request({
      path: `${url.pathname}/${n}`, method: "POST", headers: { "content-type": "application/json" }, body: `{"order":${n}}`,
    });
    await body.dump();
    if (statusCode !== 200) throw new Error(`the target answered ${statusCode}`);
  };
};

act({
  async burst({ tasks, lead_sec, in_flight }) {
    const call = caller(in_flight), at = Math.ceil(now() + lead_sec);
    let answered = 0, failed = 0;
    const end = new Promise((over) => {
      for (let n = 0; n < tasks; n += 1)
        new Cron(new Date(at * 1000), () => call(n).then(() => { answered += 1; }, () => { failed += 1; })
          .finally(() => { if (answered + failed === tasks) over(); }));
    });
    const late = now() > at - 0.2;
    await end;
    tell({ answered, failed, late, sec: now() - at });
    process.exit(0);
  },
  async recurring({ tasks, step, seconds, in_flight }) {
    const call = caller(in_flight), first = Math.ceil(now()) + 3, bySecond = {};
    for (let n = 0; n < tasks; n += 1) {
      const startAt = new Date((first + Math.floor(n / step)) * 1000 - 1);
      new Cron("* * * * * *", { protect: true, startAt }, () => call(n).then(() => {
        const second = Math.floor(now()) - first;
        bySecond[second] = (bySecond[second] || 0) + 1;
      }));
    }
    await new Promise((resolve) => setTimeout(resolve, (first + seconds - now()) * 1000));
    tell({ by_second: bySecond });
    process.exit(0);
  },
});
