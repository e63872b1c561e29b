// One run: why it is in its state, its attempts with the time each step took, what was sent and answered.
import { post } from "../api";
import { useData } from "../data";
import { say, t } from "../i18n";
import { Act, Clock, Code, Facts, Head, Load, Section, State, TaskName, Time } from "../parts/basics";
import { confirm, tell } from "../parts/dialog";
import { Why } from "../parts/explain";
import { go, link } from "../route";
import type { Attempt, Page, Run, RunWhy } from "../shapes";
import { between, span } from "../time";

const DONE = new Set(["SUCCESS", "FAILED", "TIMEOUT", "CALLBACK_SUCCESS", "FAILED_TIMEOUT", "CANCELED", "SKIPPED"]);
const STEPS = ["dns", "connect", "tls", "wait", "read"] as const;

/** How long each step of a call took; the API tells when each was over. */
function stepsOf(attempt: Attempt): number[] {
  const timing = attempt.timing;
  if (!timing) return [];
  const ends = [timing.dns_ms, timing.connect_ms, timing.tls_ms, timing.first_byte_ms, timing.total_ms];
  let before = 0;
  return ends.map((end) => {
    const took = Math.max(0, end - before);
    before = Math.max(before, end);
    return took;
  });
}

function Waterfall({ attempts }: { attempts: Attempt[] }) {
  const most = Math.max(0.001, ...attempts.map((attempt) => attempt.timing?.total_ms ?? 0));
  return (
    <table class="waterfall">
      <thead>
        <tr><th class="right">#</th><th>{t("runs.status")}</th><th class="right">{t("run.began")}</th><th>{t("run.steps")}</th><th class="right">{t("runs.took")}</th><th class="wide right">{t("runs.code")}</th><th class="wide">{t("runs.error")}</th><th class="wide">{t("run.instance")}</th></tr>
      </thead>
      <tbody>
        {attempts.map((attempt) => {
          const steps = stepsOf(attempt);
          const label = steps.map((took, at) => `${say("step", STEPS[at] ?? "")} ${span(took)}`).join(", ");
          return (
            <tr key={attempt.attempt}>
              <td class="right num">{attempt.attempt}</td>
              <td><State of={attempt.status} /></td>
              <td class="right"><Clock at={attempt.started_at} /></td>
              <td class="steps" title={label}>
                <span class="track" role="img" aria-label={label || t("none")}>
                  {steps.map((took, at) => took > 0 && <span key={at} class={`step ${STEPS[at]}`} style={{ width: `${(100 * took) / most}%` }} />)}
                </span>
              </td>
              <td class="right num">{span(attempt.timing?.total_ms ?? between(attempt.started_at, attempt.ended_at))}</td>
              <td class="wide right num">{attempt.response_code ?? "–"}</td>
              <td class="wide clip" title={attempt.error ?? ""}>{attempt.error}</td>
              <td class="wide mono">{attempt.instance}</td>
            </tr>
          );
        })}
      </tbody>
      <caption class="legend">{STEPS.map((step) => <span key={step}><span class={`step ${step}`} aria-hidden="true" />{say("step", step)}</span>)}</caption>
    </table>
  );
}

function Compare({ run }: { run: Run }) {
  const good = useData<Page<Run>>(`api/v1/tasks/${run.task_id}/runs?status=SUCCESS&page_size=1`);
  const other = good.data?.items[0];
  if (!other || other.id === run.id) return null;
  const rows: [string, string, string][] = [
    [t("runs.took"), span(between(run.start_time, run.end_time)), span(between(other.start_time, other.end_time))],
    [t("runs.late"), span(between(run.scheduled_time, run.start_time)), span(between(other.scheduled_time, other.start_time))],
    [t("runs.attempts"), String(run.attempt), String(other.attempt)],
    [t("runs.code"), String(run.response_code ?? "–"), String(other.response_code ?? "–")],
    [t("run.answer_size"), String(run.response_body?.length ?? 0), String(other.response_body?.length ?? 0)],
    [t("run.request_size"), String(run.request_body?.length ?? 0), String(other.request_body?.length ?? 0)],
  ];
  return (
    <Section title={t("run.compare")} aside={<a href={link(["runs", other.id])}>#{other.id}</a>}>
      <table>
        <thead><tr><th /><th class="right">{t("run.this")}</th><th class="right">#{other.id}</th></tr></thead>
        <tbody>{rows.map(([name, mine, its]) => <tr key={name} class={mine === its ? "" : "differs"}><td>{name}</td><td class="right num">{mine}</td><td class="right num">{its}</td></tr>)}</tbody>
      </table>
    </Section>
  );
}

function Timeline({ why }: { why: RunWhy }) {
  return (
    <ol class="timeline">
      {why.timeline.map((moment, at) => (
        <li key={at}><Clock at={moment.at} /><span>{moment.words}</span></li>
      ))}
    </ol>
  );
}

function Actions({ run, reload }: { run: Run; reload: () => void }) {
  async function retry() {
    const made = await post<{ run_id: number }>(`api/v1/runs/${run.id}/retry`);
    tell(t("run.retried", { id: made.run_id }));
    go(link(["runs", made.run_id]));
  }
  function cancel() {
    confirm({ text: t("run.cancel_sure", { id: run.id }), verb: t("run.cancel"), does: async () => { await post(`api/v1/runs/${run.id}/cancel`); reload(); } });
  }
  return DONE.has(run.status) ? <Act does={retry} kind="primary">{t("run.retry")}</Act> : <button type="button" onClick={cancel}>{t("run.cancel")}</button>;
}

export function RunPage({ id }: { id: string }) {
  const run = useData<Run>(`api/v1/runs/${id}`, { follows: ["RUN"] });
  const why = useData<RunWhy>(`api/v1/runs/${id}/explain`, { follows: ["RUN"] });
  return (
    <Load from={run}>
      {(one) => (
        <>
          <Head title={<>{t("runs.run")} <span class="num">#{one.id}</span> <State of={one.status} /></>}><Actions run={one} reload={() => { run.reload(); why.reload(); }} /></Head>
          {why.data && <Why summary={why.data.summary} reasons={why.data.reasons} />}
          <Facts rows={[
            [t("runs.task"), <TaskName key="task" of={one} />],
            [t("runs.slot"), <><Clock at={one.scheduled_time} /> <span class="muted"><Time at={one.scheduled_time} /></span></>],
            [t("runs.late"), <span class="num">{span(between(one.scheduled_time, one.start_time))}</span>],
            [t("runs.took"), <span class="num">{span(between(one.start_time, one.end_time))}</span>],
            [t("run.trigger"), say("trigger", one.trigger)],
            [t("run.next_retry"), one.next_retry_time && <Time at={one.next_retry_time} />],
            [t("run.deadline"), one.callback_deadline && <Time at={one.callback_deadline} />],
            [t("run.retry_of"), one.retry_of && <a href={link(["runs", one.retry_of])}>#{one.retry_of}</a>],
            [t("run.handed"), one.handed_to && (one.handed_to.type === "queue" ? <a href={link(["queue", one.handed_to.job_id])} class="mono">{one.handed_to.job_id}</a> : <span class="mono">{one.handed_to.job_id}</span>)],
            [t("run.trace"), <span class="mono">{one.trace_id}</span>],
          ]} />
          {one.attempts.length > 0 && <Section title={t("runs.attempts")}><Waterfall attempts={one.attempts} /></Section>}
          {why.data && <Section title={t("run.events")}><Timeline why={why.data} /></Section>}
          <div class="columns">
            <Section title={t("run.request")}><Facts rows={Object.entries(one.request_headers ?? {}).map(([name, value]) => [name, <span class="mono">{value}</span>])} /><Code text={one.request_body} /></Section>
            <Section title={t("run.answer")} aside={one.response_code ?? undefined}><Code text={one.response_body} />{one.response_truncated && <p class="muted">{t("run.truncated")}</p>}</Section>
            {(one.callbacks ?? []).length > 0 && (
              <Section title={t("run.callbacks")}>
                {one.callbacks?.map((callback) => <div key={callback.id}><Clock at={callback.received_at} /> {callback.status}<Code text={callback.body} /></div>)}
              </Section>
            )}
            <Compare run={one} />
          </div>
        </>
      )}
    </Load>
  );
}
