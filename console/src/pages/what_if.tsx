// What if: tasks, an outage, a failing target and a capacity are tried out by the server; the timeline is drawn here.
import { useEffect, useState } from "preact/hooks";
import { ApiError, get, post } from "../api";
import { say, t, type Word } from "../i18n";
import { Empty, Figures, Head, Number as Count, Problem, Section, State, toneOf } from "../parts/basics";
import { Reasons } from "../parts/ledger";
import { change, place } from "../route";
import type { Simulated, Task, TriedRun } from "../shapes";
import { between, exact, instant, short, span } from "../time";

interface Tried {
  name: string;
  schedule: string;
  zone: string;
  takes: string;
  overlap: string;
  limit: string;
  misfire: string;
  catchup: string;
  retries: string;
}

interface Form {
  tasks: Tried[];
  lasts: string;
  capacity: string;
  outage: [after: string, lasts: string];
  failing: [after: string, lasts: string];
}

const TRIED: Tried = { name: "", schedule: "*/5 * * * *", zone: "UTC", takes: "4m", overlap: "QUEUE", limit: "1", misfire: "FIRE_NOW", catchup: "3", retries: "0" };
const BLANK: Form = { tasks: [TRIED], lasts: "2h", capacity: "", outage: ["30m", "20m"], failing: ["", ""] };
const MOST_TASKS = 10;
const LANES = 6;
const WAIT_MS = 300;
const UNITS: Record<string, number> = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** `1h30m` in milliseconds; null if it says nothing. */
function readSpan(text: string): number | null {
  const parts = [...text.trim().matchAll(/(\d+(?:\.\d+)?)\s*([smhd])/g)];
  if (!parts.length) return null;
  return parts.reduce((sum, [, count, unit]) => sum + Number(count) * (UNITS[unit ?? "s"] ?? 0), 0);
}

function readForm(text: string | undefined): Form {
  try {
    const read = JSON.parse(text ?? "") as Form;
    return { ...BLANK, ...read, tasks: read.tasks.slice(0, MOST_TASKS).map((one) => ({ ...TRIED, ...one })) };
  } catch {
    return BLANK;
  }
}

function spansOf([after, lasts]: [string, string], from: number): { from: string; to: string }[] {
  const begins = readSpan(after);
  const takes = readSpan(lasts);
  if (begins === null || takes === null || takes <= 0) return [];
  return [{ from: new Date(from + begins).toISOString(), to: new Date(from + begins + takes).toISOString() }];
}

/** Six fields or five are cron; one word is an interval. */
function scheduleOf({ schedule, zone }: Tried): Record<string, string> {
  const text = schedule.trim();
  return /^\d/.test(text) && !text.includes(" ") ? { kind: "every", every: text } : { kind: "cron", expr: text, timezone: zone };
}

function bodyOf(form: Form, from: number): unknown {
  return {
    from: new Date(from).toISOString(),
    lasts: form.lasts,
    ...(form.capacity ? { capacity: Number(form.capacity) } : {}),
    outages: spansOf(form.outage, from),
    tasks: form.tasks.map((one) => ({
      takes: one.takes,
      fails: spansOf(form.failing, from),
      task: {
        ...(one.name ? { name: one.name } : {}),
        schedule: scheduleOf(one),
        timeout_seconds: "24h",
        concurrency_policy: one.overlap,
        max_concurrency: Number(one.limit) || 1,
        misfire_policy: one.misfire,
        ...(one.misfire === "CATCH_UP_LIMITED" ? { catchup_limit: Number(one.catchup) || 1 } : {}),
        retry_policy: { max_retries: Number(one.retries) || 0 },
      },
    })),
  };
}

function Pair({ word, value, set }: { word: Word; value: [string, string]; set: (value: [string, string]) => void }) {
  return (
    <div class="field" role="group" aria-label={t(word)}>
      <span>{t(word)}</span>
      <span class="pair">
        <label>{t("whatif.after")} <input class="mono" size={5} value={value[0]} onInput={(event) => set([event.currentTarget.value, value[1]])} /></label>
        <label>{t("whatif.for")} <input class="mono" size={5} value={value[1]} onInput={(event) => set([value[0], event.currentTarget.value])} /></label>
      </span>
    </div>
  );
}

function TriedInputs({ one, at, set, drop }: { one: Tried; at: number; set: (values: Partial<Tried>) => void; drop: (() => void) | null }) {
  const text = (name: keyof Tried, word: Word, more: preact.JSX.InputHTMLAttributes = {}) => (
    <label class="field"><span>{t(word)}</span><input class="mono" {...more} value={one[name]} onInput={(event) => set({ [name]: event.currentTarget.value })} /></label>
  );
  const pick = (name: keyof Tried, word: Word, prefix: string, codes: string[]) => (
    <label class="field"><span>{t(word)}</span><select value={one[name]} onChange={(event) => set({ [name]: event.currentTarget.value })}>{codes.map((code) => <option key={code} value={code}>{say(prefix, code)}</option>)}</select></label>
  );
  return (
    <fieldset>
      <legend>{one.name || t("whatif.task", { number: at + 1 })} {drop && <button type="button" class="plain" onClick={drop}>{t("whatif.drop")}</button>}</legend>
      <label class="field"><span>{t("tasks.schedule")}</span><input class="mono" spellcheck={false} value={one.schedule} onInput={(event) => set({ schedule: event.currentTarget.value })} /><small class="muted">{t("whatif.schedule_hint")}</small></label>
      {text("takes", "whatif.takes")}
      {pick("overlap", "editor.overlap", "overlap", ["QUEUE", "SKIP", "PARALLEL"])}
      {text("limit", "editor.limit", { type: "number", min: "1" })}
      {pick("misfire", "editor.misfire", "misfire", ["FIRE_NOW", "SKIP", "CATCH_UP_LIMITED"])}
      {one.misfire === "CATCH_UP_LIMITED" && text("catchup", "whatif.catchup", { type: "number", min: "1", max: "1000" })}
      {text("retries", "editor.retries", { type: "number", min: "0" })}
    </fieldset>
  );
}

/** Which lane each run is drawn in, so that those that overlap stand under each other. */
function lanesOf(runs: TriedRun[], to: number): Map<TriedRun, number> {
  const free: number[] = [];
  const lanes = new Map<TriedRun, number>();
  for (const run of runs) {
    const begin = instant(run.decided_at);
    const found = free.findIndex((end) => end <= begin);
    const lane = found >= 0 ? found : Math.min(free.length, LANES - 1);
    free[lane] = run.ended_at ? instant(run.ended_at) : to;
    lanes.set(run, lane);
  }
  return lanes;
}

function Lanes({ runs, from, to, shaded }: { runs: TriedRun[]; from: number; to: number; shaded: { from: string; to: string }[] }) {
  const lanes = lanesOf(runs, to);
  const height = 12 * (Math.max(0, ...lanes.values()) + 1);
  const left = (at: number) => (100 * (at - from)) / Math.max(1, to - from);
  return (
    <div class="lanes" style={{ height: `${height}px` }}>
      {shaded.map((one) => <span key={one.from} class="shade" style={{ left: `${left(instant(one.from))}%`, width: `${left(instant(one.to)) - left(instant(one.from))}%` }} />)}
      {runs.map((run) => {
        const top = `${12 * (lanes.get(run) ?? 0)}px`;
        const title = `${exact(run.slot)} ${say("state", run.status)} · ${say("reason", run.reason)}`;
        if (!run.attempts.length) return <span key={run.slot} class={`tick ${toneOf(run.status)}`} style={{ top, left: `${left(instant(run.decided_at))}%` }} title={title} />;
        const first = instant(run.attempts[0]?.started_at ?? run.slot);
        return [
          first > instant(run.slot) && <span key={`${run.slot} wait`} class="bar wait" style={{ top, left: `${left(Math.max(from, instant(run.slot)))}%`, width: `${left(first) - left(Math.max(from, instant(run.slot)))}%` }} title={title} />,
          ...run.attempts.map((one) => {
            const end = one.ended_at ? instant(one.ended_at) : to;
            return <span key={`${run.slot} ${one.started_at}`} class={`bar ${toneOf(one.end ?? "RUNNING")}`} style={{ top, left: `${left(instant(one.started_at))}%`, width: `${left(Math.min(end, to)) - left(instant(one.started_at))}%` }} title={`${title} · ${span(end - instant(one.started_at))}`} />;
          }),
        ];
      })}
    </div>
  );
}

function Timeline({ found, shaded }: { found: Simulated; shaded: { from: string; to: string }[] }) {
  const from = instant(found.from);
  const to = instant(found.to);
  return (
    <div class="whatif" role="img" aria-label={t("whatif.timeline_of", { runs: found.runs.length })}>
      <div class="scale num"><span>{short(found.from)}</span><span>{span(to - from)}</span><span>{short(found.to)}</span></div>
      {found.tasks.map((task, at) => (
        <div key={at} class="row">
          <span class="clip" title={task.name}>{task.name}</span>
          <Lanes runs={found.runs.filter((run) => run.task === at)} from={from} to={to} shaded={shaded} />
        </div>
      ))}
    </div>
  );
}

function Sums({ found }: { found: Simulated }) {
  return (
    <table>
      <thead><tr><th>{t("runs.task")}</th><th class="right">{t("ledger.fired")}</th><th>{t("ledger.skipped")}</th><th class="wide">{t("runs.status")}</th><th class="wide right">{t("whatif.calls")}</th><th class="wide right">{t("whatif.line")}</th><th class="right">{t("whatif.wait")}</th></tr></thead>
      <tbody>
        {found.tasks.map((task, at) => (
          <tr key={at}>
            <td class="name">{task.name}</td>
            <td class="right"><Count of={task.fired} /></td>
            <td><Reasons counts={task.skipped} kind="reason" /></td>
            <td class="wide"><Reasons counts={task.by_status} kind="state" /></td>
            <td class="wide right"><Count of={task.attempts} /></td>
            <td class="wide right"><Count of={task.most_waiting} /></td>
            <td class="right num">{span(task.longest_wait_sec * 1000)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const SHOWN = 50;

function Runs({ found }: { found: Simulated }) {
  return (
    <table>
      <thead><tr><th>{t("runs.task")}</th><th>{t("runs.status")}</th><th class="right">{t("runs.slot")}</th><th class="right">{t("runs.late")}</th><th class="wide right">{t("runs.attempts")}</th><th>{t("whatif.reason")}</th></tr></thead>
      <tbody>
        {found.runs.slice(0, SHOWN).map((run) => (
          <tr key={`${run.task} ${run.slot}`}>
            <td class="name">{found.tasks[run.task]?.name}</td>
            <td><State of={run.status} /></td>
            <td class="right num">{short(run.slot)}</td>
            <td class="right num">{run.attempts[0]?.started_at === run.slot ? "" : span(between(run.slot, run.attempts[0]?.started_at ?? null))}</td>
            <td class="wide right num">{run.attempts.length}</td>
            <td>{say("reason", run.reason)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function WhatIfPage() {
  const { values } = place.value;
  const form = readForm(values["try"]);
  const [from] = useState(() => Math.floor(Date.now() / 60_000) * 60_000);
  const [found, setFound] = useState<Simulated | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const set = (next: Partial<Form>) => change({ try: JSON.stringify({ ...form, ...next }) }, false);
  const setTask = (at: number, next: Partial<Tried>) => set({ tasks: form.tasks.map((one, number) => (number === at ? { ...one, ...next } : one)) });
  const body = JSON.stringify(bodyOf(form, from));

  const task = Number(values["task"]) || null;
  useEffect(() => {
    if (task === null || values["try"]) return;
    get<Task>(`api/v1/tasks/${task}`).then((one) => {
      const { kind, expr, every } = one.schedule;
      if (kind === "once") return;
      change({ task: null, try: JSON.stringify({ ...BLANK, tasks: [{ ...TRIED, name: one.name, schedule: (kind === "cron" ? expr : every) ?? "", zone: one.timezone, overlap: one.concurrency_policy, limit: String(one.max_concurrency), misfire: one.misfire_policy, catchup: String(one.catchup_limit || 3), retries: String(one.retry_policy.max_retries) }] }) }, false);
    }, setError);
  }, [task]);

  useEffect(() => {
    let isHere = true;
    const timer = setTimeout(() => {
      post<Simulated>("api/v1/simulate", JSON.parse(body)).then(
        (answer) => { if (isHere) { setFound(answer); setError(null); } },
        (failure: Error) => { if (isHere) setError(failure); },
      );
    }, WAIT_MS);
    return () => { isHere = false; clearTimeout(timer); };
  }, [body]);
  const where = error instanceof ApiError && error.field ? error.field : null;

  return (
    <>
      <Head title={t("nav.whatif")} />
      <p class="lead">{t("whatif.what")}</p>
      <div class="editor whatif-editor">
        <form onSubmit={(event) => event.preventDefault()}>
          <fieldset>
            <legend>{t("whatif.world")}</legend>
            <label class="field"><span>{t("whatif.lasts")}</span><input class="mono" value={form.lasts} onInput={(event) => set({ lasts: event.currentTarget.value })} /></label>
            <label class="field"><span>{t("whatif.capacity")}</span><input type="number" min="1" value={form.capacity} placeholder="∞" onInput={(event) => set({ capacity: event.currentTarget.value })} /></label>
            <Pair word="whatif.outage" value={form.outage} set={(outage) => set({ outage })} />
            <Pair word="whatif.failing" value={form.failing} set={(failing) => set({ failing })} />
          </fieldset>
          {form.tasks.map((one, at) => <TriedInputs key={at} one={one} at={at} set={(next) => setTask(at, next)} drop={form.tasks.length > 1 ? () => set({ tasks: form.tasks.filter((_, number) => number !== at) }) : null} />)}
          <div class="actions"><button type="button" disabled={form.tasks.length >= MOST_TASKS} onClick={() => set({ tasks: [...form.tasks, { ...TRIED, ...form.tasks.at(-1), name: "" }] })}>{t("whatif.add")}</button></div>
        </form>
        <div>
          <Problem error={error} />
          {where && <p class="muted mono">{where}</p>}
          {!found ? !error && <p class="muted loading">{t("list.loading")}</p> : (
            <>
              <Figures rows={[
                { name: t("whatif.most_calls"), value: <Count of={found.most_calls} /> },
                { name: t("whatif.most_ready"), value: <Count of={found.most_ready} /> },
                { name: t("ledger.fired"), value: <Count of={found.tasks.reduce((sum, one) => sum + one.fired, 0)} /> },
                { name: t("ledger.skipped"), value: <Count of={found.tasks.reduce((sum, one) => sum + Object.values(one.skipped).reduce((all, count) => all + count, 0), 0)} /> },
              ]} />
              {found.cut && <p class="state warn"><span class="mark" aria-hidden="true">!</span>{t("whatif.cut", { at: exact(found.to) })}</p>}
              {found.runs.length === 0 ? <Empty title={t("whatif.empty")} /> : (
                <>
                  <Section title={t("runs.timeline")} aside={found.runs_left_out ? t("whatif.left_out", { count: found.runs_left_out }) : undefined}>
                    <Timeline found={found} shaded={spansOf(form.outage, from)} />
                    <p class="legend muted"><span><span class="bar ok key" />{t("state.SUCCESS")}</span><span><span class="bar bad key" />{t("state.FAILED")}</span><span><span class="bar wait key" />{t("state.SCHEDULED")}</span><span><span class="tick warn key" />{t("state.SKIPPED")}</span><span><span class="shade key" />{t("whatif.outage")}</span></p>
                  </Section>
                  <Section title={t("nav.tasks")}><Sums found={found} /></Section>
                  <Section title={t("nav.runs")} aside={found.runs.length > SHOWN ? t("whatif.first", { count: SHOWN }) : undefined}><Runs found={found} /></Section>
                </>
              )}
            </>
          )}
        </div>
      </div>
    </>
  );
}
