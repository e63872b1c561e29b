// Governance: what is due, the gates and how to change them, jobs, objects, and the audit.
import { useState } from "preact/hooks";
import { put, query } from "../api";
import { useData } from "../data";
import { say, t, type Word } from "../i18n";
import { AuditCheck } from "../parts/audit_check";
import { Choice, Clock, Empty, Figures, Head, Load, Pager, Section, State, Time } from "../parts/basics";
import { confirm, tell } from "../parts/dialog";
import { change, link, place } from "../route";
import type { GovernanceFigures } from "../shapes";
import { span } from "../time";

interface Gate {
  gate: string;
  scope: string | null;
  state: string;
  reason: string | null;
  updated_at: string | null;
  updated_by: string | null;
}

interface GovernanceJob {
  job_id: string;
  object_type: string;
  object_id: string;
  action: string;
  run_at: string;
  priority: string;
  attempt: number;
  max_attempts: number;
  status: string;
  last_error: string | null;
  reason: string;
  deferred_by: string | null;
}

interface AuditEntry {
  id: string;
  event_type: string;
  actor: string;
  object_type: string | null;
  object_id: string | null;
  reason: string | null;
  timestamp: string;
  chain: number;
  seq: number;
  hash: string;
}

interface Governed {
  object_type: string;
  object_id: string;
  status: string;
  risk_tier: string;
  impact_tier: string;
  auto_verify_budget: number;
  next_action: string | null;
  next_action_at: string | null;
}

const OBJECT_STATES: Record<string, string[]> = {
  memory: ["candidate", "verified", "quarantine", "active", "stale", "stale_uncertain", "rejected_poisoned", "archived"],
  experience: ["candidate", "active", "needs_review", "invalidated", "archived"],
  cognition: ["candidate", "active", "needs_revalidate", "stale", "refuted", "archived"],
};
const GATE_STATES = ["open", "degraded", "closed"];
const JOB_STATES = ["queued", "running", "succeeded", "failed", "dead_letter"];

function ObjectLink({ type, id }: { type: string; id: string }) {
  return <a href={link(["governance", type, id])}>{type} <span class="mono">{id}</span></a>;
}

function GateRow({ gate, reload }: { gate: Gate; reload: () => void }) {
  const [reason, setReason] = useState("");
  async function set(state: string, why: string) {
    await put(`scheduler/gates/${gate.gate}`, { state, scope: gate.scope, reason: why || null });
    reload();
  }
  function choose(state: string) {
    if (state === gate.state) return;
    const before = gate.state;
    confirm({
      text: t("gov.gate_sure", { gate: gate.gate, state: say("state", state) }),
      verb: t("gov.gate_set"),
      does: async () => {
        await set(state, reason);
        tell(t("gov.gate_done", { gate: gate.gate, state: say("state", state) }), () => set(before, ""));
      },
    });
  }
  return (
    <tr>
      <td>{gate.gate}</td>
      <td>{gate.scope ?? t("gov.everywhere")}</td>
      <td><State of={gate.state} /></td>
      <td class="wide">{gate.reason}</td>
      <td class="wide"><Time at={gate.updated_at} /> {gate.updated_by && <span class="muted">{gate.updated_by}</span>}</td>
      <td class="wide"><input aria-label={t("gov.reason")} placeholder={t("gov.reason")} value={reason} onInput={(event) => setReason(event.currentTarget.value)} /></td>
      <td><Choice label={t("gov.gate_of", { gate: gate.gate })} value={gate.state} options={GATE_STATES.map((state): [string, string] => [state, t(`state.${state}` as Word)])} onChange={choose} /></td>
    </tr>
  );
}

function Gates() {
  const gates = useData<{ gates: Gate[] }>("scheduler/gates", { follows: ["GATE"] });
  return (
    <Section title={t("gov.gates")}>
      <Load from={gates}>
        {(found) => (
          <table>
            <thead><tr><th>{t("gov.gate")}</th><th>{t("gov.scope")}</th><th>{t("queue.state")}</th><th class="wide">{t("gov.reason")}</th><th class="wide">{t("gov.changed")}</th><th class="wide" /><th>{t("gov.change")}</th></tr></thead>
            <tbody>{found.gates.map((gate) => <GateRow key={`${gate.gate} ${gate.scope ?? ""} ${gate.state}`} gate={gate} reload={gates.reload} />)}</tbody>
          </table>
        )}
      </Load>
    </Section>
  );
}

function Jobs() {
  const { values } = place.value;
  const jobs = useData<{ jobs: GovernanceJob[]; next_cursor: string | null }>(`scheduler/jobs${query({ status: values["status"], cursor: values["cursor"], limit: 25 })}`, { follows: ["GOV_JOB"], isList: true });
  return (
    <Section title={t("queue.jobs")}>
      <div class="filters"><Choice label={t("queue.state")} value={values["status"] ?? ""} options={[["", t("tasks.any_status")], ...JOB_STATES.map((state): [string, string] => [state, t(`state.${state}` as Word)])]} onChange={(status) => change({ status, cursor: null })} /></div>
      <Load from={jobs}>
        {(page) => page.jobs.length === 0 ? <Empty title={t("gov.empty")} /> : (
          <>
            <table>
              <thead><tr><th>{t("gov.object")}</th><th>{t("gov.action")}</th><th>{t("queue.state")}</th><th class="wide right">{t("runs.attempts")}</th><th class="wide">{t("runs.error")}</th><th class="right">{t("gov.due")}</th></tr></thead>
              <tbody>{page.jobs.map((job) => <tr key={job.job_id}><td class="clip"><ObjectLink type={job.object_type} id={job.object_id} /></td><td>{job.action}</td><td><State of={job.status} /></td><td class="wide right num">{job.attempt} / {job.max_attempts}</td><td class="wide clip" title={job.last_error ?? ""}>{job.last_error ?? (job.deferred_by && t("gov.deferred", { by: job.deferred_by }))}</td><td class="right"><Time at={job.run_at} /></td></tr>)}</tbody>
            </table>
            <Pager cursor={values["cursor"]} next={page.next_cursor} change={change} />
          </>
        )}
      </Load>
    </Section>
  );
}

function Audit() {
  const audit = useData<{ events: AuditEntry[] }>("scheduler/audit?limit=15", { follows: ["GOV_JOB", "GATE", "OBJECT"] });
  return (
    <Section title={t("gov.audit")}>
      <AuditCheck />
      <Load from={audit}>
        {(page) => page.events.length === 0 ? <p class="muted">{t("gov.no_audit")}</p> : (
          <table>
            <thead><tr><th>{t("gov.when")}</th><th>{t("gov.what")}</th><th>{t("gov.actor")}</th><th class="wide">{t("gov.object")}</th><th class="wide">{t("gov.reason")}</th><th class="wide">{t("gov.chain")}</th></tr></thead>
            <tbody>{page.events.map((entry) => <tr key={entry.id}><td><Clock at={entry.timestamp} /></td><td>{entry.event_type}</td><td>{entry.actor}</td><td class="wide clip">{entry.object_type && entry.object_id && <ObjectLink type={entry.object_type} id={entry.object_id} />}</td><td class="wide">{entry.reason}</td><td class="wide mono" title={entry.hash}>{entry.chain}.{entry.seq} {entry.hash.slice(0, 10)}</td></tr>)}</tbody>
          </table>
        )}
      </Load>
    </Section>
  );
}

/** Objects by type and id, a page at a time: there may be millions. */
function Objects() {
  const { values } = place.value;
  const { type, object, prefix, at } = values;
  const objects = useData<{ objects: Governed[]; next_cursor: string | null }>(`scheduler/objects${query({ object_type: type, status: object, id_prefix: type && prefix, cursor: at, limit: 25 })}`, { follows: ["OBJECT"], isList: true });
  const states = type ? (OBJECT_STATES[type] ?? []) : [...new Set(Object.values(OBJECT_STATES).flat())];
  return (
    <Section title={t("gov.objects")}>
      <div class="filters">
        <Choice label={t("gov.type")} value={type ?? ""} options={[["", t("gov.any_type")], ...Object.keys(OBJECT_STATES).map((one): [string, string] => [one, one])]} onChange={(one) => change({ type: one, object: null, prefix: null, at: null })} />
        <Choice label={t("gov.status")} value={object ?? ""} options={[["", t("tasks.any_status")], ...states.map((one): [string, string] => [one, say("state", one)])]} onChange={(one) => change({ object: one, at: null })} />
        {type && <input class="search" aria-label={t("gov.prefix")} placeholder={t("gov.prefix")} value={prefix ?? ""} onInput={(event) => change({ prefix: event.currentTarget.value, at: null }, false)} />}
      </div>
      <Load from={objects}>
        {(page) => page.objects.length === 0 ? <Empty title={t(type || object ? "gov.no_match" : "gov.no_objects")}>{!type && !object && <p>{t("gov.no_objects_how")}</p>}</Empty> : (
          <>
            <table>
              <thead><tr><th>{t("gov.object")}</th><th>{t("queue.state")}</th><th class="wide">{t("gov.risk")}</th><th class="wide right">{t("gov.budget")}</th><th class="wide">{t("gov.next_action")}</th><th class="right">{t("gov.due")}</th></tr></thead>
              <tbody>{page.objects.map((one) => <tr key={`${one.object_type}/${one.object_id}`}><td class="clip"><ObjectLink type={one.object_type} id={one.object_id} /></td><td><State of={one.status} /></td><td class="wide">{one.risk_tier} · {one.impact_tier}</td><td class="wide right num">{one.auto_verify_budget}</td><td class="wide">{one.next_action ?? "–"}</td><td class="right"><Time at={one.next_action_at} /></td></tr>)}</tbody>
            </table>
            <Pager byId cursor={at} next={page.next_cursor} change={({ cursor }) => change({ at: cursor })} />
          </>
        )}
      </Load>
    </Section>
  );
}

const percent = (ratio: number | null) => (ratio === null ? "–" : `${Math.round(ratio * 100)} %`);

export function GovernancePage() {
  const figures = useData<GovernanceFigures>("scheduler/metrics", { follows: ["GOV_JOB", "GATE"] });
  const now = figures.data;
  return (
    <>
      <Head title={t("nav.governance")} />
      {now && (
        <Figures rows={[
          { name: t("overview.due"), value: now.jobs_due_count },
          { name: t("gov.lag"), value: span(now.jobs_lag_seconds * 1000) },
          { name: t("state.running"), value: now.jobs_running_count, href: link(["governance"], { status: "running" }) },
          { name: t("gov.deferred_count"), value: now.jobs_deferred_count },
          { name: t("gov.success"), value: percent(now.job_success_rate) },
          { name: t("gov.retry"), value: percent(now.job_retry_rate) },
          { name: t("overview.dead"), value: now.dead_letter_count, href: link(["letters"], { surface: "governance" }), tone: now.dead_letter_count ? "bad" : "idle" },
        ]} />
      )}
      <Gates />
      <Jobs />
      <Objects />
      <Audit />
    </>
  );
}
