// All tasks: search, filters, and one action on all that match.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, patch, post, query, remove } from "../api";
import { useData } from "../data";
import { say, t, type Word } from "../i18n";
import { Choice, Clock, Empty, Head, Load, Pager, Search, State, Time, nameOf } from "../parts/basics";
import { confirm, tell } from "../parts/dialog";
import { Spark } from "../parts/spark";
import { change, link, place } from "../route";
import type { Page, Run, Task } from "../shapes";
import { ownZone } from "../time";

const SIZE = 50;
const RESULTS = ["success", "failed", "timeout", "skipped", "paused", "missed", "never"];
const BULK_PAGE = 200;
const AT_ONCE = 6;
const SPARK = 12;

type Verb = "enable" | "disable" | "run" | "delete";
const DOES: Record<Verb, (task: Task) => Promise<unknown>> = {
  enable: (task) => (task.status === "ENABLED" ? Promise.resolve() : patch(`api/v1/tasks/${task.id}/enable`)),
  disable: (task) => (task.status === "DISABLED" ? Promise.resolve() : patch(`api/v1/tasks/${task.id}/disable`)),
  run: (task) => post(`api/v1/tasks/${task.id}/trigger`),
  delete: (task) => remove(`api/v1/tasks/${task.id}`),
};

/** Do it to every task that matches, a page at a time, a few at once. */
async function doToAll(verb: Verb, filter: Record<string, string | undefined>): Promise<void> {
  let cursor: number | null = 0;
  let done = 0;
  let refused = 0;
  while (cursor !== null) {
    const page: Page<Task> = await get(`api/v1/tasks${query({ ...filter, page_size: BULK_PAGE, cursor })}`);
    for (let at = 0; at < page.items.length; at += AT_ONCE) {
      const ends = await Promise.allSettled(page.items.slice(at, at + AT_ONCE).map(DOES[verb]));
      done += ends.filter((end) => end.status === "fulfilled").length;
      refused += ends.filter((end) => end.status === "rejected").length;
    }
    cursor = page.next_cursor;
  }
  tell(t(refused ? "tasks.bulk_some" : "tasks.bulk_done", { done, refused }));
}

function Bulk({ total, filter, reload }: { total: number; filter: Record<string, string | undefined>; reload: () => void }) {
  return (
    <Choice
      label={t("tasks.bulk", { total })}
      value=""
      options={[["", t("tasks.bulk", { total })], ...(["enable", "disable", "run", "delete"] as const).map((verb): [string, string] => [verb, t(`tasks.${verb}`)])]}
      onChange={(verb) => {
        if (!verb) return;
        const name = t(`tasks.${verb}` as Word);
        confirm({
          text: t("tasks.bulk_sure", { verb: name, total }),
          verb: name,
          does: async () => {
            await doToAll(verb as Verb, filter);
            reload();
          },
        });
      }}
    />
  );
}

/** The last runs of a task, asked for when its row is seen: a page has many rows. */
function LastRuns({ id, beat }: { id: number; beat: string | null }) {
  const [runs, setRuns] = useState<Run[]>([]);
  const [isSeen, setSeen] = useState(false);
  const box = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (!box.current) return;
    const watch = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && setSeen(true));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (!isSeen || beat === null) return;
    const abort = new AbortController();
    get<Page<Run>>(`api/v1/tasks/${id}/runs?page_size=${SPARK}`, abort.signal).then(
      (page) => setRuns(page.items),
      () => undefined,
    );
    return () => abort.abort();
  }, [id, beat, isSeen]);
  return <span ref={box}>{runs.length > 0 && <Spark runs={runs} />}</span>;
}

export function scheduleWords(task: Task): string {
  const { kind, expr, every, run_at } = task.schedule;
  return kind === "cron" ? (expr ?? "") : kind === "every" ? t("tasks.every", { every: every ?? "" }) : t("tasks.once", { at: run_at ?? "" });
}

function Row({ task }: { task: Task }) {
  return (
    <tr>
      <td class="name"><a href={link(["tasks", task.id])}>{nameOf(task)}</a>{task.tags.map((tag) => <a key={tag} class="tag" href={link(["tasks"], { tag })}>{tag}</a>)}</td>
      <td><State of={task.status} /></td>
      <td class="wide mono" title={task.timezone}>{scheduleWords(task)}</td>
      <td class="right"><Time at={task.next_run_at} zone={task.timezone} /></td>
      <td class="wide right"><Clock at={task.next_run_at} /></td>
      <td class="wide right">{task.timezone !== ownZone && <Clock at={task.next_run_at} zone={task.timezone} />}</td>
      <td>{task.last_status ? <State of={task.last_status} /> : <span class="muted">{t("tasks.never")}</span>}</td>
      <td class="wide"><LastRuns id={task.id} beat={task.last_run_at} /></td>
    </tr>
  );
}

export function TasksPage() {
  const { values } = place.value;
  const filter = { name: values["name"], status: values["status"], tag: values["tag"], last_status: values["last"] };
  const tasks = useData<Page<Task>>(`api/v1/tasks${query({ ...filter, cursor: values["cursor"], page_size: SIZE })}`, { follows: ["TASK", "RUN"], isList: true });
  const isFiltered = Boolean(values["name"] || values["status"] || values["tag"] || values["last"]);
  return (
    <>
      <Head title={t("nav.tasks")}><a class="button primary" href={link(["tasks", "new"])}>{t("tasks.new")}</a></Head>
      <div class="filters">
        <Search label={t("tasks.search")} value={values["name"] ?? ""} onInput={(name) => change({ name, cursor: null }, false)} />
        <Choice label={t("tasks.status")} value={values["status"] ?? ""} options={[["", t("tasks.any_status")], ["ENABLED", t("state.ENABLED")], ["DISABLED", t("state.DISABLED")]]} onChange={(status) => change({ status, cursor: null })} />
        <Choice label={t("tasks.result")} value={values["last"] ?? ""} options={[["", t("tasks.any_result")], ...RESULTS.map((result): [string, string] => [result, say("state", result)])]} onChange={(last) => change({ last, cursor: null })} />
        {values["tag"] && <button type="button" class="tag" onClick={() => change({ tag: null })}>{values["tag"]} ✕</button>}
        {tasks.data && tasks.data.total > 0 && <Bulk total={tasks.data.total} filter={filter} reload={tasks.reload} />}
      </div>
      <Load from={tasks}>
        {(page) => {
          const rows = page.items;
          if (!rows.length && isFiltered) return <Empty title={t("tasks.no_match")}><a class="button" href={link(["tasks"])}>{t("clear")}</a></Empty>;
          if (!rows.length) return <Empty title={t("tasks.empty")}><p>{t("overview.empty_how")}</p><a class="button primary" href={link(["tasks", "new"])}>{t("tasks.first")}</a></Empty>;
          return (
            <>
              <table>
                <thead>
                  <tr>
                    <th>{t("tasks.name")}</th><th>{t("tasks.status")}</th><th class="wide">{t("tasks.schedule")}</th><th class="right">{t("tasks.next")}</th>
                    <th class="wide right">{ownZone}</th><th class="wide right">{t("tasks.own_zone")}</th><th>{t("tasks.last")}</th><th class="wide">{t("tasks.runs")}</th>
                  </tr>
                </thead>
                <tbody>{rows.map((task) => <Row key={task.id} task={task} />)}</tbody>
              </table>
              <Pager cursor={values["cursor"]} next={page.next_cursor} total={page.total} change={change} />
            </>
          );
        }}
      </Load>
    </>
  );
}
