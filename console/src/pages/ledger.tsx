// The ledger of all tasks: expected, fired, skipped, missing.
import { query } from "../api";
import { useData } from "../data";
import { t } from "../i18n";
import { Empty, Head, Load, Pager, Section } from "../parts/basics";
import { CountedTo, LedgerFigures, LedgerTable, Reasons, WindowTabs, useWindow } from "../parts/ledger";
import { change, link, place } from "../route";
import type { Ledger } from "../shapes";

export function LedgerPage() {
  const { values } = place.value;
  const ledger = useData<Ledger>(`api/v1/ledger${query({ ...useWindow(), cursor: values["cursor"], limit: 50 })}`);
  return (
    <>
      <Head title={t("nav.ledger")} />
      <p class="lead">{t("ledger.what")}</p>
      <div class="filters"><WindowTabs /></div>
      <Load from={ledger}>
        {(page) => page.tasks.length === 0 && !values["cursor"] ? (
          <Empty title={t("ledger.empty")}><a class="button" href={link(["tasks"])}>{t("nav.tasks")}</a></Empty>
        ) : (
          <>
            <LedgerFigures of={page.total} />
            {Object.keys(page.total.skipped).length > 0 && <p class="muted">{t("ledger.skipped")}: <Reasons counts={page.total.skipped} kind="reason" /></p>}
            <Section title={t("nav.tasks")} aside={page.next_cursor || values["cursor"] ? t("ledger.page") : undefined}>
              <LedgerTable rows={page.tasks} to={page.to} />
              <Pager cursor={values["cursor"]} next={page.next_cursor} change={change} />
            </Section>
          </>
        )}
      </Load>
    </>
  );
}

/** The same of one task, on its page. */
export function TaskLedger({ id }: { id: number }) {
  const ledger = useData<Ledger>(`api/v1/ledger${query({ ...useWindow(), task_id: id })}`, { follows: ["TASK"] });
  return (
    <Section title={t("nav.ledger")}>
      <div class="filters"><WindowTabs /></div>
      <Load from={ledger}>
        {(page) => (
          <>
            <LedgerFigures of={page.total} />
            <CountedTo row={page.tasks[0]} to={page.to} />
            {Object.keys(page.total.skipped).length > 0 && <p class="muted">{t("ledger.skipped")}: <Reasons counts={page.total.skipped} kind="reason" /></p>}
          </>
        )}
      </Load>
    </Section>
  );
}
