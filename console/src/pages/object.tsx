// One governed object: its state, its budget, what comes next and why.
import { query } from "../api";
import { useData } from "../data";
import { t } from "../i18n";
import { Code, Empty, Facts, Head, Load, Section, State, Time } from "../parts/basics";
import { Why } from "../parts/explain";
import { link } from "../route";
import type { Reason } from "../shapes";

interface Governed {
  object_type: string;
  object_id: string;
  status: string;
  epistemic_state: string | null;
  risk_tier: string;
  impact_tier: string;
  auto_verify_budget: number;
  verify_count: number;
  uncertainty_ttl: string | null;
  review_due_at: string | null;
  expires_at: string | null;
  next_action_at: string | null;
  next_action: string | null;
  weight: number;
  reinforcement_count: number;
  data: unknown;
  version: number;
  created_at: string;
  updated_at: string;
}

interface AuditRow {
  id: string;
  event_type: string;
  actor: string;
  reason: string | null;
  timestamp: string;
}

export function ObjectPage({ type, id }: { type: string; id: string }) {
  const path = `scheduler/objects/${encodeURIComponent(type)}/${encodeURIComponent(id)}`;
  const object = useData<Governed>(path, { follows: ["OBJECT", "GOV_JOB"] });
  const why = useData<{ summary: string; reasons: Reason[] }>(`${path}/explain`, { follows: ["OBJECT", "GOV_JOB", "GATE"] });
  const audit = useData<{ events: AuditRow[] }>(`scheduler/audit${query({ object_type: type, object_id: id, limit: 25 })}`, { follows: ["OBJECT", "GOV_JOB"] });
  return (
    <>
      <Head title={<>{type} <span class="mono">{id}</span> {object.data && <State of={object.data.status} />}</>}><a class="button" href={link(["governance"])}>{t("nav.governance")}</a></Head>
      <Load from={object}>
        {(one) => (
          <>
            {why.data && <Why summary={why.data.summary} reasons={why.data.reasons} />}
            <Facts rows={[
              [t("gov.next_action"), one.next_action && <>{one.next_action} <Time at={one.next_action_at} /></>],
              [t("gov.budget"), <span class="num">{one.auto_verify_budget}</span>],
              [t("gov.verified"), <span class="num">{one.verify_count}</span>],
              [t("gov.risk"), `${one.risk_tier} · ${one.impact_tier}`],
              [t("gov.epistemic"), one.epistemic_state],
              [t("gov.ttl"), one.uncertainty_ttl],
              [t("gov.review"), one.review_due_at && <Time at={one.review_due_at} />],
              [t("gov.expires"), one.expires_at && <Time at={one.expires_at} />],
              [t("gov.weight"), <span class="num">{one.weight}</span>],
              [t("gov.reinforced"), <span class="num">{one.reinforcement_count}</span>],
              [t("gov.changed"), <Time at={one.updated_at} />],
            ]} />
            <Section title={t("gov.data")}><Code text={one.data === null ? null : JSON.stringify(one.data)} /></Section>
          </>
        )}
      </Load>
      <Section title={t("gov.audit")}>
        <Load from={audit}>
          {(page) => page.events.length === 0 ? <Empty title={t("gov.no_audit")} /> : (
            <table>
              <thead><tr><th>{t("gov.when")}</th><th>{t("gov.what")}</th><th>{t("gov.actor")}</th><th class="wide">{t("gov.reason")}</th></tr></thead>
              <tbody>{page.events.map((entry) => <tr key={entry.id}><td><Time at={entry.timestamp} /></td><td>{entry.event_type}</td><td>{entry.actor}</td><td class="wide">{entry.reason}</td></tr>)}</tbody>
            </table>
          )}
        </Load>
      </Section>
    </>
  );
}
