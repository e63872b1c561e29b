// The queue: how full it is, who waits, who works.
import { query } from "../api";
import { useData } from "../data";
import { say, t, type Word } from "../i18n";
import { Choice, Empty, Figures, Head, Load, Pager, Section, State, Time } from "../parts/basics";
import { Chart } from "../parts/chart";
import { change, link, place } from "../route";
import type { Job, QueueSnapshot } from "../shapes";

const STATES = ["QUEUED", "CLAIMED", "PREPARING", "LEASE_PENDING", "RUNNING", "DONE", "FAILED", "CANCELED", "TIMEOUT"];

interface Points {
  points: { ts: string; value: number | null }[];
}

export function Gauge({ used, reserved, total }: { used: number; reserved: number; total: number }) {
  const label = t("queue.gauge", { used, reserved, total });
  return (
    <div class="gauge" role="img" aria-label={label} title={label}>
      <span class="bar busy" style={{ width: `${(100 * used) / Math.max(1, total)}%` }} />
      <span class="bar warn" style={{ width: `${(100 * reserved) / Math.max(1, total)}%` }} />
    </div>
  );
}

function Series({ metric, word, format }: { metric: string; word: Word; format?: (value: number) => string }) {
  const series = useData<Points>(`api/scheduler/stats/timeseries?metric=${metric}&bucket=1m&range=1h`, { follows: ["JOB"] });
  if (!series.data) return null;
  const times = series.data.points.map((point) => Date.parse(point.ts) / 1000);
  return (
    <div>
      <h3>{t(word)}</h3>
      <Chart label={t(word)} times={times} lines={[{ name: t(word), colour: "--accent", values: series.data.points.map((point) => point.value) }]} {...(format ? { format } : {})} />
    </div>
  );
}

function JobTable({ jobs }: { jobs: Job[] }) {
  return (
    <table>
      <thead><tr><th>{t("queue.job")}</th><th>{t("queue.state")}</th><th>{t("queue.type")}</th><th class="wide">{t("queue.priority")}</th><th class="wide right">{t("queue.units")}</th><th class="wide right">{t("runs.attempts")}</th><th class="wide">{t("queue.worker")}</th><th class="wide right">{t("queue.progress")}</th><th class="right">{t("queue.created")}</th></tr></thead>
      <tbody>
        {jobs.map((job) => (
          <tr key={job.job_id}>
            <td><a class="mono" href={link(["queue", job.job_id])}>{job.job_id.slice(-12)}</a></td>
            <td><State of={job.state} /></td>
            <td>{job.addon_id} / {job.job_type}</td>
            <td class="wide">{say("priority", job.priority)}</td>
            <td class="wide right num">{job.cost_units}</td>
            <td class="wide right num">{job.attempts} / {job.max_attempts}</td>
            <td class="wide mono clip">{job.claimed_by}</td>
            <td class="wide right num">{job.progress === null || job.finished_at !== null ? "" : `${Math.round(job.progress * 100)} %`}</td>
            <td class="right"><Time at={job.created_at} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface Lease {
  lease_id: string;
  job_id: string;
  addon_id: string;
  cost_units: number;
  worker_id: string | null;
  granted_at: string;
  last_heartbeat_at: string;
  expires_at: string;
}

interface Count {
  count: number;
  more: boolean;
}

const DEPTHS = ["ready", "scheduled", "claimed", "preparing", "lease_pending", "running"] as const;

type PriorityDepth = { priority: string } & Record<(typeof DEPTHS)[number], Count>;

const depthWord = (name: string): string => (name === "ready" ? t("queue.ready") : name === "scheduled" ? t("queue.scheduled") : say("state", name.toUpperCase()));
const depthClass = (name: string): string => (["claimed", "preparing", "lease_pending"].includes(name) ? "wide right num" : "right num");

/** How many wait and are held, by priority. Counts stop where they would get long; then they say so. */
function Depth() {
  const depth = useData<{ priorities: PriorityDepth[] }>("api/scheduler/stats/depth", { follows: ["JOB", "LEASE"], pauseMs: 3000 });
  if (!depth.data) return null;
  return (
    <Section title={t("queue.by_priority")}>
      <table>
        <thead><tr><th>{t("queue.priority")}</th>{DEPTHS.map((name) => <th key={name} class={depthClass(name)}>{depthWord(name)}</th>)}</tr></thead>
        <tbody>
          {depth.data.priorities.map((row) => (
            <tr key={row.priority}>
              <td>{say("priority", row.priority)}</td>
              {DEPTHS.map((name) => <td key={name} class={depthClass(name)} title={row[name].more ? t("queue.more") : undefined}>{row[name].more && "≥ "}{row[name].count.toLocaleString("en-US")}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </Section>
  );
}

/** Who holds the capacity, with heartbeats. */
function Holders() {
  const held = useData<{ leases: Lease[] }>("api/scheduler/leases?limit=25", { follows: ["LEASE"] });
  if (!held.data?.leases.length) return null;
  return (
    <Section title={t("queue.holders")}>
      <table>
        <thead><tr><th>{t("queue.worker")}</th><th>{t("queue.job")}</th><th class="right">{t("queue.units")}</th><th class="wide right">{t("queue.granted")}</th><th class="right">{t("queue.heartbeat")}</th><th class="wide right">{t("queue.ends")}</th></tr></thead>
        <tbody>{held.data.leases.map((one) => <tr key={one.lease_id}><td class="clip">{one.worker_id ?? "–"}</td><td class="clip"><a href={link(["queue", one.job_id])}><span class="mono">{one.job_id.slice(-12)}</span></a> <span class="muted">{one.addon_id}</span></td><td class="right num">{one.cost_units}</td><td class="wide right"><Time at={one.granted_at} /></td><td class="right"><Time at={one.last_heartbeat_at} /></td><td class="wide right"><Time at={one.expires_at} /></td></tr>)}</tbody>
      </table>
    </Section>
  );
}

export function QueuePage() {
  const { values } = place.value;
  const snapshot = useData<QueueSnapshot>("api/scheduler/stats/snapshot", { follows: ["JOB", "LEASE"] });
  const jobs = useData<{ jobs: Job[]; next_cursor: string | null }>(`api/scheduler/jobs${query({ state: values["state"], addon_id: values["addon"], cursor: values["cursor"], limit: 50 })}`, { follows: ["JOB", "LEASE"], isList: true });
  const now = snapshot.data;
  return (
    <>
      <Head title={t("nav.queue")} />
      {now && (
        <>
          <Figures rows={[
            { name: t("state.QUEUED"), value: now.jobs["queued"] ?? 0, href: link(["queue"], { state: "QUEUED" }) },
            { name: t("state.RUNNING"), value: now.jobs["running"] ?? 0, href: link(["queue"], { state: "RUNNING" }) },
            { name: t("queue.failed_day"), value: now.jobs["failed_last_24h"] ?? 0, href: link(["queue"], { state: "FAILED" }) },
            { name: t("queue.timeout_day"), value: now.jobs["timeout_last_24h"] ?? 0, href: link(["queue"], { state: "TIMEOUT" }) },
            { name: t("queue.leases"), value: now.leases["active"] ?? 0 },
            { name: t("overview.capacity"), value: `${now.capacity.used + now.capacity.reserved} / ${now.capacity.total}` },
          ]} />
          <Gauge {...now.capacity} />
        </>
      )}
      <div class="charts"><Series metric="jobs_done" word="queue.done" /><Series metric="jobs_queued" word="queue.depth" /><Series metric="wait_seconds_p95" word="queue.wait" format={(value) => `${Number(value.toFixed(2))} s`} /></div>
      <Depth />
      <Holders />
      <Section title={t("queue.jobs")}>
        <div class="filters">
          <Choice label={t("queue.state")} value={values["state"] ?? ""} options={[["", t("tasks.any_status")], ...STATES.map((state): [string, string] => [state, t(`state.${state}` as Word)])]} onChange={(state) => change({ state, cursor: null })} />
        </div>
        <Load from={jobs}>
          {(page) => page.jobs.length === 0 ? <Empty title={t("queue.empty")}><p>{t("queue.empty_how")}</p></Empty> : <><JobTable jobs={page.jobs} /><Pager cursor={values["cursor"]} next={page.next_cursor} change={change} /></>}
        </Load>
      </Section>
    </>
  );
}
