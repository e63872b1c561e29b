// Why: the summary, and behind it the recorded reasons.
import { t } from "../i18n";
import type { Reason } from "../shapes";

export function Why({ summary, reasons }: { summary: string; reasons: Reason[] }) {
  return (
    <div class="why">
      <p>{summary}</p>
      <details>
        <summary>{t("why.reasons", { count: reasons.length })}</summary>
        <ul>
          {reasons.map((reason, at) => (
            <li key={at}><code>{reason.code}</code> {reason.message}</li>
          ))}
        </ul>
      </details>
    </div>
  );
}
