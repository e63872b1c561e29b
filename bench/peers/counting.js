// What every worker written for Node tells: how many jobs are done, and when the first and the last was.
"use strict";

let done = 0, first = 0, last = 0, told = 0;

const now = () => (performance.timeOrigin + performance.now()) / 1000;

exports.now = now;
exports.count = () => {
  last = now();
  if (done === 0) first = last;
  done += 1;
};
exports.tellOften = () => {
  tell({ ready: true });
  setInterval(() => {
    if (done !== told) tell({ done, first, last });
    told = done;
  }, 20);
};
exports.tell = tell;

function tell(what) {
  process.stdout.write(JSON.stringify(what) + "\n");
}

/** Runs the action named on the command line with its options. */
exports.act = async (actions) => {
  const [action, options] = process.argv.slice(2);
  await actions[action](JSON.parse(options));
};

/** Adds `jobs` in batches, four batches at a time; the seconds it took. */
exports.addBatches = async ({ jobs, batch }, add) => {
  let left = jobs;
  const began = now();
  const feed = async () => {
    while (left > 0) {
      const size = Math.min(batch, left);
      left -= size;
      await add(size);
    }
  };
  await Promise.all([feed(), feed(), feed(), feed()]);
  tell({ sec: now() - began });
};

/** Adds one job after the other for so long. */
exports.addOneByOne = async ({ seconds }, add) => {
  let count = 0;
  const began = now();
  while (now() < began + seconds) {
    await add();
    count += 1;
  }
  tell({ count, sec: now() - began });
};

/** Adds a job every 10 ms; milliseconds from before the add to the handler's first line. */
exports.timeStarts = async ({ count }, add, started) => {
  const began = new Map(), waits = [];
  let over;
  const end = new Promise((resolve) => { over = resolve; });
  started((n) => {
    waits.push((now() - began.get(n)) * 1000);
    if (waits.length === count) over();
  });
  for (let n = 0; n < count; n += 1) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    began.set(n, now());
    await add(n);
  }
  await end;
  tell({ waits });
};
