// What became of every slot: the figures of one task or of a page of them.
import { say, t } from "../i18n";
import { place, change, link } from "../route";
import type { LedgerRow, LedgerSums } from "../shapes";
import { exact, now } from "../time";
import { Figures, Number } from "./basics";

const HOUR = 3_600_000;
const SPANS = { hour: HOUR, day: 24 * HOUR, week: 168 * HOUR, month: 720 * HOUR } as const;
type Span = keyof typeof SPANS;

/** From and to of the chosen window; it is asked anew every ten seconds. */
export function useWindow(): { from: string; to: string } {
  const span = (place.value.values["window"] ?? "day") as Span;
  const to = Math.floor(now.value / 10_000) * 10_000;
  return { from: new Date(to - (SPANS[span] ?? SPANS.day)).toISOString(), to: new Date(to).toISOString() };
}

export function WindowTabs() {
  const chosen = place.value.values["window"] ?? "day";
  return (
    <div class="tabs" role="group" aria-label={t("ledger.window")}>
      {(Object.keys(SPANS) as Span[]).map((span) => (
        <button key={span} type="button" aria-pressed={chosen === span} onClick={() => change({ window: span === "day" ? null : span, cursor: null })}>{t(`ledger.${span}`)}</button>
      ))}
    </div>
  );
}

export function skippedOf(sums: LedgerSums): number {
  return Object.values(sums.skipped).reduce((sum, count) => sum + count, 0);
}

/** A page that has looked at enough ends in the midst of a task's window. */
export function CountedTo({ row, to }: { row: LedgerRow | undefined; to: string }) {
  if (!row || row.to === to) return null;
  return <span class="state warn"><span class="mark" aria-hidden="true">!</span>{t("ledger.counted_to", { at: exact(row.to) })}</span>;
}

export function LedgerFigures({ of: sums }: { of: LedgerSums }) {
  return (
    <>
      <Figures rows={[
        { name: t("ledger.expected"), value: <Number of={sums.expected} /> },
        { name: t("ledger.fired"), value: <Number of={sums.fired} /> },
        { name: t("ledger.skipped"), value: <Number of={skippedOf(sums)} /> },
        { name: t("ledger.pending"), value: <Number of={sums.pending} /> },
        { name: t("ledger.forgotten"), value: <Number of={sums.forgotten} /> },
        { name: t("ledger.missing"), value: <Number of={sums.missing} />, ...(sums.missing ? { tone: "bad" as const } : {}) },
      ]} />
      <p class={sums.missing ? "state bad" : "state ok"}>
        <span class="mark" aria-hidden="true">{sums.missing ? "✕" : "✓"}</span>
        {sums.missing ? t("ledger.not_well", { count: sums.missing }) : t("ledger.all_well")}
      </p>
    </>
  );
}

/** Counts by code, the largest first. */
export function Reasons({ counts, kind }: { counts: Record<string, number>; kind: "reason" | "state" }) {
  const rows = Object.entries(counts).sort((one, other) => other[1] - one[1]);
  return <span class="counts">{rows.map(([code, count]) => <span key={code}><Number of={count} /> {say(kind, code)}</span>)}</span>;
}

export function LedgerTable({ rows, to }: { rows: LedgerRow[]; to: string }) {
  return (
    <table>
      <thead><tr><th>{t("runs.task")}</th><th class="right">{t("ledger.expected")}</th><th class="right">{t("ledger.fired")}</th><th class="wide">{t("runs.status")}</th><th class="wide">{t("ledger.skipped")}</th><th class="wide right" title={t("ledger.forgotten_hint")}>{t("ledger.forgotten")}</th><th class="wide right">{t("ledger.pending")}</th><th class="right">{t("ledger.missing")}</th></tr></thead>
      <tbody>
        {rows.map((row) => (
          <tr key={`${row.task_id} ${row.from}`}>
            <td>
              {row.deleted ? <span class="muted">{row.name || row.job_id} ({t("ledger.deleted")})</span> : <a href={link(["tasks", row.task_id], { window: place.value.values["window"] })}>{row.name || row.job_id}</a>}
              {" "}<CountedTo row={row} to={to} />
              {row.known_from && <span class="muted"> {t("ledger.known", { at: exact(row.known_from) })}</span>}
            </td>
            <td class="right"><Number of={row.expected} /></td>
            <td class="right"><Number of={row.fired} /></td>
            <td class="wide"><Reasons counts={row.by_status} kind="state" /></td>
            <td class="wide"><Reasons counts={row.skipped} kind="reason" /></td>
            <td class="wide right"><Number of={row.forgotten} /></td>
            <td class="wide right"><Number of={row.pending} /></td>
            <td class={row.missing ? "right state bad" : "right"}>{row.missing ? "✕ " : ""}<Number of={row.missing} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
