// What runs, what failed, what comes next, and how the service fares.
import { useMemo } from "preact/hooks";
import { useData } from "../data";
import { say, t } from "../i18n";
import type { LiveEvent } from "../live";
import { Clock, Empty, Facts, Figures, Head, Load, Section, State, TaskName, Time, nameOf } from "../parts/basics";
import { Chart } from "../parts/chart";
import { change, link, place } from "../route";
import type { Cluster, Group, Page, Ready, Run, Stats, Task } from "../shapes";
import { instant, span } from "../time";

const EVENTS = "api/v1/events?entity_type=RUN&order=desc&limit=500";
const KINDS = ["TASK", "RUN", "JOB", "LEASE", "GOV_JOB", "OBJECT", "GATE", "NODE", "SESSION", "NODE_JOB", "KEY", "STORE"];
const MOST_BUCKETS = 30;
const LEAST_STEP_MS = 5000;
interface RunSeries {
  from: string;
  bucket_sec: number;
  succeeded: number[];
  failed: number[];
  skipped: number[];
  mean_sec: (number | null)[];
}

const RANGES = ["1h", "6h", "24h", "7d"];

/** The worst lateness of starts among the newest events, in equal steps of time. */
export function sumUp(events: LiveEvent[]): { times: number[]; late: (number | null)[] } | null {
  const first = events.at(-1);
  const last = events[0];
  if (!first || !last) return null;
  const begin = instant(first.ts);
  const step = Math.max(LEAST_STEP_MS, (instant(last.ts) - begin) / MOST_BUCKETS);
  const buckets = Math.floor((instant(last.ts) - begin) / step);
  const times = Array.from({ length: buckets + 1 }, (_, at) => (begin + at * step) / 1000);
  const late: (number | null)[] = times.map(() => null);
  for (const event of events) {
    const slot = event.type === "RUN_STARTED" ? event.data?.["slot"] : null;
    if (typeof slot !== "string") continue;
    const at = Math.min(buckets, Math.floor((instant(event.ts) - begin) / step));
    late[at] = Math.max(late[at] ?? 0, instant(event.ts) - instant(slot));
  }
  return { times, late };
}

function Lateness() {
  const events = useData<{ events: LiveEvent[] }>(EVENTS, { follows: ["RUN"] });
  const found = useMemo(() => (events.data ? sumUp(events.data.events) : null), [events.data]);
  if (!found) return null;
  return (
    <div>
      <h3>{t("overview.late")}</h3>
      <Chart label={t("overview.late")} times={found.times} lines={[{ name: t("overview.late"), colour: "--accent", values: found.late }]} format={(value) => span(value)} />
    </div>
  );
}

function Charts() {
  const range = place.value.values["range"] ?? "1h";
  const series = useData<RunSeries>(`api/v1/runs/series?range=${range}`, { follows: ["RUN"] });
  const drawn = useMemo(() => {
    if (!series.data) return null;
    const { from, bucket_sec, succeeded, failed, mean_sec } = series.data;
    const begin = instant(from) / 1000;
    const ratio = succeeded.map((ok, at) => (ok + (failed[at] ?? 0) ? (100 * ok) / (ok + (failed[at] ?? 0)) : null));
    return { times: succeeded.map((_, at) => begin + at * bucket_sec), succeeded, failed, ratio, mean: mean_sec.map((mean) => (mean === null ? null : 1000 * mean)) };
  }, [series.data]);
  if (!drawn) return null;
  const aside = (
    <div class="tabs" role="group" aria-label={t("overview.range")}>
      {RANGES.map((name) => <button key={name} type="button" aria-pressed={range === name} onClick={() => change({ range: name === "1h" ? null : name })}>{name}</button>)}
    </div>
  );
  return (
    <Section title={t("overview.lately")} aside={aside}>
      <div class="charts">
        <div>
          <h3>{t("overview.throughput")}</h3>
          <Chart label={t("overview.throughput")} times={drawn.times} lines={[{ name: t("overview.ok"), colour: "--ok", values: drawn.succeeded, kind: "bars", align: -1 }, { name: t("overview.bad"), colour: "--bad", values: drawn.failed, kind: "bars", align: 1 }]} />
        </div>
        <div>
          <h3>{t("overview.ratio")}</h3>
          <Chart label={t("overview.ratio")} times={drawn.times} lines={[{ name: t("overview.ratio"), colour: "--accent", values: drawn.ratio }]} format={(value) => `${Math.round(value)} %`} max={100} />
        </div>
        <div>
          <h3>{t("overview.mean")}</h3>
          <Chart label={t("overview.mean")} times={drawn.times} lines={[{ name: t("overview.mean"), colour: "--accent", values: drawn.mean }]} format={(value) => span(value)} />
        </div>
        <Lateness />
      </div>
    </Section>
  );
}

/** How many there are on all surfaces, as far as groups tell. */
function deadOf(page: { groups: Group[]; next_cursor?: string | null } | null): string {
  if (!page) return "–";
  const isMore = Boolean(page.next_cursor) || page.groups.some((group) => group.is_capped);
  return `${page.groups.reduce((sum, group) => sum + group.count, 0).toLocaleString("en-US")}${isMore ? "+" : ""}`;
}

function figuresOf(stats: Stats, dead: string) {
  const by = stats.tasks?.by_status ?? {};
  const queue = stats.queue;
  return [
    { name: t("overview.tasks"), value: String((by["ENABLED"] ?? 0) + (by["DISABLED"] ?? 0)), href: link(["tasks"]) },
    { name: t("overview.disabled"), value: String(by["DISABLED"] ?? 0), href: link(["tasks"], { status: "DISABLED" }) },
    { name: t("overview.callbacks"), value: String(stats.tasks?.callbacks_pending ?? 0), href: link(["runs"], { status: "CALLBACK_PENDING" }) },
    { name: t("overview.queued"), value: String(queue?.jobs["queued"] ?? 0), href: link(["queue"]) },
    { name: t("overview.running"), value: String(queue?.jobs["running"] ?? 0), href: link(["queue"], { state: "RUNNING" }) },
    { name: t("overview.capacity"), value: queue ? `${queue.capacity.used + queue.capacity.reserved} / ${queue.capacity.total}` : "–", href: link(["queue"]) },
    { name: t("overview.due"), value: String(stats.governance?.jobs_due_count ?? 0), href: link(["governance"]) },
    { name: t("overview.dead"), value: dead, href: link(["letters"]), tone: /[1-9]/.test(dead) ? ("bad" as const) : ("idle" as const) },
    { name: t("overview.nodes"), value: String(stats.nodes?.["nodes"] ?? 0), href: link(["nodes"]) },
  ];
}

function First() {
  return (
    <Empty title={t("overview.empty")}>
      <p>{t("overview.empty_how")}</p>
      <a class="button primary" href={link(["tasks", "new"])}>{t("tasks.first")}</a>
    </Empty>
  );
}

function RunTable({ runs, isFailed }: { runs: Run[]; isFailed: boolean }) {
  if (!runs.length) return <p class="muted">{t(isFailed ? "overview.no_failed" : "overview.no_running")}</p>;
  return (
    <table>
      <tbody>
        {runs.map((run) => (
          <tr key={run.id}>
            <td><a href={link(["runs", run.id])} class="num">#{run.id}</a></td>
            <td><TaskName of={run} /></td>
            <td><State of={run.status} /></td>
            <td class="wide clip" title={run.error_message ?? ""}>{run.error_message}</td>
            <td class="right"><Time at={run.end_time ?? run.start_time ?? run.scheduled_time} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Next() {
  const tasks = useData<Page<Task>>("api/v1/tasks?status=ENABLED&page_size=50", { follows: ["TASK", "RUN"] });
  const isAll = tasks.data !== null && tasks.data.total <= tasks.data.items.length;
  const next = (tasks.data?.items ?? [])
    .filter((task) => task.next_run_at !== null)
    .sort((one, other) => instant(one.next_run_at ?? "") - instant(other.next_run_at ?? ""))
    .slice(0, 8);
  return (
    <Section title={t("overview.next")} aside={isAll ? undefined : t("overview.next_of", { count: 50 })}>
      {next.length === 0 ? <p class="muted">{t("overview.no_next")}</p> : (
        <table>
          <tbody>
            {next.map((task) => (
              <tr key={task.id}>
                <td><a class="clip" href={link(["tasks", task.id])}>{nameOf(task)}</a></td>
                <td class="right"><Clock at={task.next_run_at} /></td>
                <td class="right"><Time at={task.next_run_at} zone={task.timezone} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Section>
  );
}

function Health() {
  const ready = useData<Ready>("readyz", { follows: ["STORE", "NODE"] });
  const cluster = useData<Cluster>("api/v1/cluster", { follows: ["NODE"] });
  const problems = ready.data?.problems ?? [];
  return (
    <Section title={t("overview.health")}>
      {ready.error && <p class="problem" role="alert">✕ {ready.error.message}</p>}
      {ready.data && <p><State of={ready.data.status} /> {problems.length === 0 && <span class="muted">{t("overview.checks", { count: Object.keys(ready.data.checks).length })}</span>}</p>}
      {problems.map((problem) => <p class="problem" key={problem}>✕ {problem}</p>)}
      {cluster.data && (
        <table>
          <tbody>
            {cluster.data.instances.map((one) => (
              <tr key={one.instance_id}>
                <td class="mono">{one.instance_id}</td>
                <td class="num">{one.version}</td>
                <td class="right"><Time at={one.started_at} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Section>
  );
}

function Entity({ of: event }: { of: LiveEvent }) {
  if (event.entity_type === "RUN") return <a href={link(["runs", event.entity_id])}>#{event.entity_id}</a>;
  if (event.entity_type === "TASK") return <a href={link(["tasks", event.entity_id])}>#{event.entity_id}</a>;
  const short = event.entity_id.slice(-12);
  return event.entity_type === "JOB" ? <a href={link(["queue", event.entity_id])}>{short}</a> : <span title={event.entity_id}>{short}</span>;
}

function Happening() {
  const newest = useData<{ events: LiveEvent[] }>("api/v1/events?order=desc&limit=8", { follows: KINDS });
  const events = newest.data?.events ?? [];
  return (
    <Section title={t("overview.events")}>
      {events.length === 0 ? <p class="muted">{t("overview.no_events")}</p> : (
        <table>
          <tbody>
            {events.map((event) => (
              <tr key={event.id}>
                <td><Clock at={event.ts} /></td>
                <td>{say("event", event.type)}</td>
                <td class="right mono clip"><Entity of={event} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Section>
  );
}

export function Overview() {
  const stats = useData<Stats>("api/v1/stats", { follows: ["TASK", "RUN", "JOB", "GOV_JOB", "NODE", "NODE_JOB"] });
  const running = useData<Page<Run>>("api/v1/runs?status=RUNNING&page_size=5", { follows: ["RUN"] });
  const groups = useData<{ groups: Group[]; next_cursor?: string | null }>("api/v1/dead-letters/groups?limit=50", { follows: ["RUN", "JOB", "GOV_JOB"] });
  const failed = useData<Page<Run>>("api/v1/runs?status=FAILED&page_size=5", { follows: ["RUN"] });
  const by = stats.data?.tasks?.by_status;
  const isEmpty = by !== undefined && Object.keys(by).length === 0;
  return (
    <>
      <Head title={t("nav.overview")}>{stats.data && <span class="muted">{stats.data.version} · {stats.data.store.kind}</span>}</Head>
      {stats.error && stats.data === null && <p class="problem" role="alert">✕ {stats.error.message}</p>}
      {stats.data && <Figures rows={figuresOf(stats.data, deadOf(groups.data))} />}
      {isEmpty && <First />}
      {!isEmpty && <Charts />}
      <div class="columns">
        <Section title={t("overview.now")}><Load from={running}>{(page) => <RunTable runs={page.items} isFailed={false} />}</Load></Section>
        <Next />
        <Section title={t("overview.failed")} aside={<a href={link(["runs"], { status: "FAILED" })}>{t("all")}</a>}>
          <Load from={failed}>{(page) => <RunTable runs={page.items} isFailed />}</Load>
        </Section>
        <Happening />
        {groups.data && groups.data.groups.length > 0 && (
          <Section title={t("overview.alerts")} aside={<a href={link(["letters"])}>{t("all")}</a>}>
            <Facts rows={groups.data.groups.slice(0, 5).map((group) => [`${group.count}${group.is_capped ? "+" : ""} × ${say("surface", group.surface)}`, <a key={group.group} class="clip" href={link(["letters"], { surface: group.surface, error: group.error })}>{group.error}</a>])} />
          </Section>
        )}
        <Health />
      </div>
    </>
  );
}
