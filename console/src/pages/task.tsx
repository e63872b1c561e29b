// One task: its runs, how long they took, when it fires next, and why it did or did not run at any instant.
import { useState } from "preact/hooks";
import { get, patch, post, query, remove } from "../api";
import { useData } from "../data";
import { say, t } from "../i18n";
import { Act, Clock, Empty, Facts, Head, Load, Pager, Problem, Section, State, Time, nameOf } from "../parts/basics";
import { Chart } from "../parts/chart";
import { confirm, tell } from "../parts/dialog";
import { Why } from "../parts/explain";
import { PastSlots } from "../parts/past_slots";
import { RunTable } from "../parts/run_table";
import { change, go, link, place } from "../route";
import type { Page, Preview, Run, Task, TaskWhy } from "../shapes";
import { between, exact, instant, ownZone, span } from "../time";
import { TaskLedger } from "./ledger";
import { scheduleWords } from "./tasks";

function Explain({ task }: { task: Task }) {
  const { values } = place.value;
  const at = values["at"] ?? "";
  const why = useData<TaskWhy>(`api/v1/tasks/${task.id}/explain${query({ at })}`, { follows: ["RUN", "TASK"] });
  const local = at ? exact(at).replace(" ", "T") : "";
  return (
    <Section title={t("task.why")}>
      <div class="filters">
        <label>
          {t("task.at", { zone: ownZone })}{" "}
          <input type="datetime-local" step="1" value={local} onChange={(event) => {
            const chosen = new Date(event.currentTarget.value);
            change({ at: Number.isNaN(chosen.getTime()) ? null : chosen.toISOString() });
          }} />
        </label>
        {at && <button type="button" class="plain" onClick={() => change({ at: null })}>{t("task.now")}</button>}
      </div>
      <Load from={why}>
        {(found) => (
          <div class="explained">
            <p><State of={found.verdict} /> {found.slot && <span class="muted">{t("runs.slot")} {exact(found.slot)}</span>} {found.run && <a href={link(["runs", found.run.id])}>#{found.run.id}</a>}</p>
            <Why summary={found.summary} reasons={found.reasons} />
          </div>
        )}
      </Load>
    </Section>
  );
}

function Upcoming({ task }: { task: Task }) {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [asked, setAsked] = useState(0);
  const [error, setError] = useState<Error | null>(null);
  if (asked !== task.version && task.schedule.kind !== "once") {
    setAsked(task.version);
    const { kind, expr, every, timezone, start_at, end_at } = task.schedule;
    const body = kind === "cron" ? { schedule: { kind, expr, timezone, start_at, end_at }, count: 10 } : { schedule: { kind, every, start_at: start_at ?? task.next_run_at, end_at }, count: 10 };
    post<Preview>("api/v1/schedules/preview", body).then(setPreview, setError);
  }
  if (task.status === "DISABLED") return <p class="muted">{t("task.disabled")}</p>;
  return (
    <>
      <Problem error={error} />
      {preview && <p class="muted">{preview.description}</p>}
      <ol class="timeline">
        {(preview?.next ?? []).map((firing) => (
          <li key={firing.at}>
            <button type="button" class="plain" title={t("task.why")} onClick={() => change({ at: firing.at })}><Clock at={firing.at} /></button>
            <span><Time at={firing.at} zone={task.timezone} />{task.timezone !== ownZone && <span class="muted num"> {exact(firing.at, task.timezone).slice(11)} {task.timezone}</span>}{firing.note && <em> {firing.note}</em>}</span>
          </li>
        ))}
      </ol>
    </>
  );
}

function Trend({ runs }: { runs: Run[] }) {
  const done = [...runs].reverse().filter((run) => run.start_time && run.end_time);
  if (done.length < 3) return null;
  const times = done.map((run) => instant(run.start_time ?? "") / 1000);
  if (times.some((time, at) => at > 0 && time <= (times[at - 1] ?? 0))) return null;
  return (
    <Section title={t("task.trend")}>
      <Chart label={t("task.trend")} times={times} format={(value) => span(value)} lines={[{ name: t("runs.took"), colour: "--accent", values: done.map((run) => between(run.start_time, run.end_time)) }]} />
    </Section>
  );
}

interface ResumeBill {
  passed: number;
  first_passed: string | null;
  last_passed: string | null;
  next_run_at: string | null;
}

function Actions({ task, reload }: { task: Task; reload: () => void }) {
  const isOn = task.status === "ENABLED";
  async function trigger() {
    const made = await post<{ run_id: number }>(`api/v1/tasks/${task.id}/trigger`);
    tell(t("task.triggered", { id: made.run_id }));
    reload();
  }
  async function flip(to: boolean) {
    await patch(`api/v1/tasks/${task.id}/${to ? "enable" : "disable"}`);
    reload();
  }
  async function pause() {
    if (!isOn) return resume();
    await flip(!isOn);
    tell(t("task.paused", { name: nameOf(task) }), () => flip(true));
  }
  async function resume() {
    const bill = await get<ResumeBill>(`api/v1/tasks/${task.id}/resume-preview`);
    const next = bill.next_run_at ? t("task.resume_next", { at: exact(bill.next_run_at) }) : t("task.resume_never");
    const passed = bill.passed ? t("task.resume_passed", { count: bill.passed.toLocaleString("en-US"), first: exact(bill.first_passed ?? ""), last: exact(bill.last_passed ?? "") }) : "";
    confirm({
      text: [t("task.resume_sure", { name: nameOf(task) }), passed, next].filter(Boolean).join(" "),
      verb: t("tasks.enable"),
      does: async () => { await flip(true); tell(t("task.resumed", { name: nameOf(task) }), () => flip(false)); },
    });
  }
  async function drop() {
    const runs = await get<Page<Run>>(`api/v1/tasks/${task.id}/runs?page_size=1`);
    confirm({
      text: t("task.delete_sure", { name: nameOf(task), runs: runs.total }),
      verb: t("tasks.delete"),
      does: async () => { await remove(`api/v1/tasks/${task.id}`); tell(t("task.deleted", { name: nameOf(task) })); go(link(["tasks"])); },
    });
  }
  return (
    <>
      <Act does={trigger} kind="primary">{t("tasks.run")}</Act>
      <Act does={pause}>{t(isOn ? "tasks.disable" : "tasks.enable")}</Act>
      <a class="button" href={link(["tasks", task.id, "edit"])}>{t("task.edit")}</a>
      <a class="button" href={link(["tasks", "new"], { from: task.id })}>{t("task.clone")}</a>
      {task.schedule.kind !== "once" && <a class="button" href={link(["what-if"], { task: task.id })}>{t("task.whatif")}</a>}
      <Act does={drop} kind="danger">{t("tasks.delete")}</Act>
    </>
  );
}

export function TaskPage({ id }: { id: number }) {
  const { values } = place.value;
  const task = useData<Task>(`api/v1/tasks/${id}`, { follows: ["TASK", "RUN"] });
  const runs = useData<Page<Run>>(`api/v1/tasks/${id}/runs${query({ page_size: 50, cursor: values["cursor"] })}`, { follows: ["RUN"], isList: true });
  return (
    <Load from={task}>
      {(one) => (
        <>
          <Head title={<>{nameOf(one)} <State of={one.status} /></>}><Actions task={one} reload={() => { task.reload(); runs.reload(); }} /></Head>
          {one.description && <p>{one.description}</p>}
          <Facts rows={[
            [t("tasks.schedule"), <span class="mono">{scheduleWords(one)}</span>],
            [t("editor.zone"), one.schedule.kind === "cron" ? one.timezone : null],
            [t("tasks.next"), one.next_run_at && <><Clock at={one.next_run_at} /> <span class="muted"><Time at={one.next_run_at} zone={one.timezone} /></span></>],
            [t("editor.target"), one.type === "http" ? <span class="mono">{one.http_method} {one.target_url}</span> : say("surface", one.type)],
            [t("editor.timeout"), <span class="num">{span(one.timeout_seconds * 1000)}</span>],
            [t("editor.retries"), <span class="num">{one.retry_policy.max_retries}</span>],
            [t("editor.overlap"), `${say("overlap", one.concurrency_policy)} · ${one.max_concurrency}`],
            [t("editor.misfire"), say("misfire", one.misfire_policy)],
            [t("task.fired"), <span class="num">{one.runs_fired}</span>],
            [t("editor.tags"), one.tags.length ? one.tags.join(", ") : null],
          ]} />
          <div class="columns">
            <Explain task={one} />
            <Section title={t("task.upcoming")}><Upcoming task={one} /></Section>
          </div>
          <TaskLedger id={one.id} />
          {one.schedule.kind !== "once" && <PastSlots task={one} reload={() => { task.reload(); runs.reload(); }} />}
          {runs.data && <Trend runs={runs.data.items} />}
          <Section title={t("nav.runs")}>
            <Load from={runs}>
              {(page) => page.items.length === 0 ? <Empty title={t("task.no_runs")} /> : <><RunTable runs={page.items} hasTask={false} /><Pager cursor={values["cursor"]} next={page.next_cursor} total={page.total} change={change} /></>}
            </Load>
          </Section>
        </>
      )}
    </Load>
  );
}
