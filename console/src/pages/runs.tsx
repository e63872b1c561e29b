// All runs, newest first: table or timeline; what failed, by error.
import { query } from "../api";
import { useData } from "../data";
import { t, type Word } from "../i18n";
import { Choice, Empty, Head, Load, Pager } from "../parts/basics";
import { Gantt, RunTable } from "../parts/run_table";
import { change, link, place } from "../route";
import type { Page, Run } from "../shapes";

const STATES = ["SCHEDULED", "RUNNING", "SUCCESS", "FAILED", "TIMEOUT", "RETRYING", "CALLBACK_PENDING", "CALLBACK_SUCCESS", "FAILED_TIMEOUT", "CANCELED", "SKIPPED"];

export function RunsPage() {
  const { values } = place.value;
  const runs = useData<Page<Run>>(
    `api/v1/runs${query({ status: values["status"], task_id: values["task"], from: values["from"], to: values["to"], cursor: values["cursor"], page_size: 50 })}`,
    { follows: ["RUN"], isList: true },
  );
  const view = values["view"] === "timeline" ? "timeline" : "table";
  return (
    <>
      <Head title={t("nav.runs")}><a class="button" href={link(["letters"], { surface: "tasks" })}>{t("runs.failures")}</a></Head>
      <div class="filters">
        <Choice label={t("runs.status")} value={values["status"] ?? ""} options={[["", t("tasks.any_status")], ...STATES.map((state): [string, string] => [state, t(`state.${state}` as Word)])]} onChange={(status) => change({ status, cursor: null })} />
        <div class="tabs" role="group" aria-label={t("runs.view")}>
          {(["table", "timeline"] as const).map((name) => (
            <button key={name} type="button" aria-pressed={view === name} onClick={() => change({ view: name === "table" ? null : name })}>{t(`runs.${name}`)}</button>
          ))}
        </div>
        {values["task"] && <button type="button" class="tag" onClick={() => change({ task: null, cursor: null })}>{t("runs.task")} #{values["task"]} ✕</button>}
      </div>
      <Load from={runs}>
        {(page) =>
          page.items.length === 0 ? (
            <Empty title={t(values["status"] ? "runs.no_match" : "runs.empty")}><a class="button" href={link(["tasks"])}>{t("nav.tasks")}</a></Empty>
          ) : (
            <>
              {view === "table" ? <RunTable runs={page.items} /> : <Gantt runs={page.items} />}
              <Pager cursor={values["cursor"]} next={page.next_cursor} total={page.total} change={change} />
            </>
          )
        }
      </Load>
    </>
  );
}
