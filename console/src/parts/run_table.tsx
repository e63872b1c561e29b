// Runs as a table and as a timeline of who overlaps.
import { say, t } from "../i18n";
import { link } from "../route";
import type { Run } from "../shapes";
import { between, instant, short, span } from "../time";
import { Clock, State, TaskName, Time, toneOf } from "./basics";

export function RunTable({ runs, hasTask = true }: { runs: Run[]; hasTask?: boolean }) {
  return (
    <table>
      <thead>
        <tr>
          <th>{t("runs.run")}</th>
          {hasTask && <th>{t("runs.task")}</th>}
          <th>{t("runs.status")}</th>
          <th class="wide right">{t("runs.slot")}</th>
          <th class="wide right">{t("runs.late")}</th>
          <th class="right">{t("runs.took")}</th>
          <th class="wide right">{t("runs.attempts")}</th>
          <th class="wide right">{t("runs.code")}</th>
          <th class="wide">{t("runs.error")}</th>
          <th class="right">{t("runs.when")}</th>
        </tr>
      </thead>
      <tbody>
        {runs.map((run) => (
          <tr key={run.id}>
            <td><a class="num" href={link(["runs", run.id])}>#{run.id}</a></td>
            {hasTask && <td><TaskName of={run} /></td>}
            <td><State of={run.status} /></td>
            <td class="wide right"><Clock at={run.scheduled_time} /></td>
            <td class="wide right num">{run.trigger === "schedule" ? span(between(run.scheduled_time, run.start_time)) : <span class="muted">{say("trigger", run.trigger)}</span>}</td>
            <td class="right num">{span(between(run.start_time, run.end_time))}</td>
            <td class="wide right num">{run.attempt}</td>
            <td class="wide right num">{run.response_code ?? "–"}</td>
            <td class="wide clip" title={run.error_message ?? run.reason ?? ""}>{run.error_message ?? (run.status === "SKIPPED" ? run.reason : "")}</td>
            <td class="right"><Time at={run.end_time ?? run.start_time ?? run.scheduled_time} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Bars from start to end on one axis: runs that overlap stand under each other. */
export function Gantt({ runs }: { runs: Run[] }) {
  const started = runs.filter((run) => run.start_time !== null);
  if (!started.length) return null;
  const from = Math.min(...started.map((run) => instant(run.start_time ?? "")));
  const to = Math.max(...started.map((run) => (run.end_time ? instant(run.end_time) : Date.now())));
  const whole = Math.max(1, to - from);
  return (
    <div class="gantt">
      <div class="scale num"><span>{short(new Date(from).toISOString())}</span><span>{span(whole)}</span><span>{short(new Date(to).toISOString())}</span></div>
      {[...started].reverse().map((run) => {
        const begin = instant(run.start_time ?? "");
        const end = run.end_time ? instant(run.end_time) : Date.now();
        return (
          <a key={run.id} class="lane" href={link(["runs", run.id])} title={`#${run.id} ${say("state", run.status)} ${span(end - begin)}`} aria-label={`#${run.id} ${say("state", run.status)} ${span(end - begin)}`}>
            <span class="num">#{run.id}</span>
            <span class="track"><span class={`bar ${toneOf(run.status)}`} style={{ left: `${(100 * (begin - from)) / whole}%`, width: `${Math.max(0.4, (100 * (end - begin)) / whole)}%` }} /></span>
          </a>
        );
      })}
    </div>
  );
}
