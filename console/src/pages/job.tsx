// One job of the queue: why it waits, runs or ended, and what happened to it.
import { post } from "../api";
import { useData } from "../data";
import { say, t } from "../i18n";
import { Clock, Code, Facts, Head, Load, Section, State, Time } from "../parts/basics";
import { confirm } from "../parts/dialog";
import { Why } from "../parts/explain";
import type { Job, Reason } from "../shapes";

interface Explained {
  summary: string;
  reasons: Reason[];
  position: number | null;
  holders: { lease_id: string; job_id: string; addon_id: string; worker_id: string | null; cost_units: number; expires_at: string | null }[];
  events: { ts: string; type: string; data: unknown }[];
}

interface Detail {
  job: Job;
  result: { status: string; error: string | null; result_data: unknown } | null;
}

interface Lease {
  state: string;
  ttl_sec: number;
  granted_at: string;
  last_heartbeat_at: string;
  expires_at: string;
  worker_id: string | null;
}

const DONE = new Set(["DONE", "FAILED", "CANCELED", "TIMEOUT"]);

function LeaseFacts({ id }: { id: string }) {
  const lease = useData<Lease | { lease: Lease }>(`api/scheduler/lease/${id}`, { follows: ["LEASE"] });
  if (!lease.data) return null;
  const one = "lease" in lease.data ? lease.data.lease : lease.data;
  return (
    <Section title={t("queue.lease")}>
      <Facts rows={[[t("queue.state"), say("state", one.state)], [t("queue.worker"), one.worker_id], [t("queue.heartbeat"), <Time at={one.last_heartbeat_at} />], [t("queue.expires"), <Time at={one.expires_at} />]]} />
    </Section>
  );
}

export function JobPage({ id }: { id: string }) {
  const detail = useData<Detail>(`api/scheduler/jobs/${id}`, { follows: ["JOB", "LEASE"] });
  const why = useData<Explained>(`api/scheduler/jobs/${id}/explain`, { follows: ["JOB", "LEASE"] });
  function cancel() {
    confirm({ text: t("queue.cancel_sure", { id }), verb: t("run.cancel"), does: async () => { await post(`api/scheduler/jobs/${id}/cancel`, { reason: "" }); detail.reload(); } });
  }
  return (
    <Load from={detail}>
      {({ job, result }) => (
        <>
          <Head title={<>{job.addon_id} / {job.job_type} <State of={job.state} /></>}>{!DONE.has(job.state) && <button type="button" onClick={cancel}>{t("run.cancel")}</button>}</Head>
          {why.data && <Why summary={why.data.summary} reasons={why.data.reasons} />}
          <Facts rows={[
            [t("queue.job"), <span class="mono">{job.job_id}</span>],
            [t("queue.priority"), say("priority", job.priority)],
            [t("queue.units"), <span class="num">{job.cost_units}</span>],
            [t("runs.attempts"), <span class="num">{job.attempts} / {job.max_attempts}</span>],
            [t("queue.position"), why.data?.position],
            [t("queue.created"), <Time at={job.created_at} />],
            [t("queue.worker"), job.claimed_by],
            [t("run.next_retry"), job.next_retry_at && <Time at={job.next_retry_at} />],
            [t("queue.note"), job.note],
            [t("runs.error"), result?.error],
          ]} />
          {job.lease_id && <LeaseFacts id={job.lease_id} />}
          {why.data && why.data.holders.length > 0 && (
            <Section title={t("queue.holders")}>
              <table><tbody>{why.data.holders.map((holder) => <tr key={holder.lease_id}><td class="mono">{holder.job_id.slice(-12)}</td><td>{holder.addon_id}</td><td>{holder.worker_id}</td><td class="right num">{holder.cost_units}</td><td class="right"><Time at={holder.expires_at} /></td></tr>)}</tbody></table>
            </Section>
          )}
          <div class="columns">
            <Section title={t("run.events")}><ol class="timeline">{(why.data?.events ?? []).map((event, at) => <li key={at}><Clock at={event.ts} /><span>{say("event", event.type)}</span></li>)}</ol></Section>
            <Section title={t("queue.payload")}><Code text={JSON.stringify(job.payload)} /></Section>
            {result && <Section title={t("queue.result")}><Code text={JSON.stringify(result.result_data)} /></Section>}
          </div>
        </>
      )}
    </Load>
  );
}
