// What is to come: firings per hour and host as a heat map, and what falls together in one hour.
import { useState } from "preact/hooks";
import { patch, query } from "../api";
import { useData } from "../data";
import { t } from "../i18n";
import { Act, Choice, Empty, Figures, Head, Load, Number as Count, Section } from "../parts/basics";
import { Chart } from "../parts/chart";
import { tell } from "../parts/dialog";
import { change, link, place } from "../route";
import type { Forecast, HostAhead } from "../shapes";
import { exact, instant, ownZone, span, weekday } from "../time";

const HOUR = 3_600_000;

function compact(count: number): string {
  if (count < 1000) return String(count);
  return count < 1e6 ? `${Math.round(count / 100) / 10}k` : `${Math.round(count / 1e5) / 10}M`;
}

/** The darker the more: by the root, so that small numbers are seen beside large ones. */
function shade(count: number, most: number): string {
  return count ? `color-mix(in srgb, var(--accent) ${Math.round(6 + 40 * Math.sqrt(count / most))}%, transparent)` : "transparent";
}

function Cell({ count, most, at, host }: { count: number; most: number; at: string; host: string | null }) {
  const { values } = place.value;
  const isChosen = values["at"] === at && (values["host"] ?? null) === host;
  const label = `${host ?? t("calendar.all_hosts")}, ${exact(at).slice(0, 16)}: ${t("calendar.count", { count: count.toLocaleString("en-US") })}`;
  return (
    <td class="cell" style={{ background: shade(count, most) }}>
      <button type="button" class="plain num" aria-label={label} title={label} aria-pressed={isChosen} onClick={() => change({ at, host })}>{count ? compact(count) : "·"}</button>
    </td>
  );
}

function hoursOf(found: Forecast): string[] {
  const from = instant(found.from);
  return found.counts.map((_, at) => new Date(from + at * HOUR).toISOString());
}

/** A day: hosts under each other, hours side by side. */
function Day({ found }: { found: Forecast }) {
  const hours = hoursOf(found);
  const most = Math.max(1, ...found.hosts.flatMap((host) => host.counts));
  const rows: [string | null, number[]][] = found.hosts.map((host) => [host.host, host.counts]);
  return (
    <div class="heat" tabIndex={0} role="region" aria-label={t("calendar.by_host")}>
      <table>
        <thead><tr><th>{t("calendar.host")}</th>{hours.map((at) => <th key={at} class="num">{exact(at).slice(11, 13)}</th>)}<th class="right">{t("calendar.sum")}</th></tr></thead>
        <tbody>
          {rows.map(([host, counts]) => (
            <tr key={host}>
              <th scope="row" class="clip" title={host ?? ""}>{host}</th>
              {counts.map((count, at) => <Cell key={at} count={count} most={most} at={hours[at] ?? ""} host={host} />)}
              <td class="right"><Count of={counts.reduce((sum, count) => sum + count, 0)} /></td>
            </tr>
          ))}
          {found.hosts.length > 1 && (
            <tr>
              <th scope="row">{t("calendar.all_hosts")}</th>
              {found.counts.map((count, at) => <Cell key={at} count={count} most={Math.max(1, ...found.counts)} at={hours[at] ?? ""} host={null} />)}
              <td class="right"><Count of={found.firings} /></td>
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

/** A week: days under each other, hours of the day side by side. */
function Week({ found, host }: { found: Forecast; host: string | null }) {
  const hours = hoursOf(found);
  const counts = host === null ? found.counts : (found.hosts.find((one) => one.host === host)?.counts ?? []);
  const most = Math.max(1, ...counts);
  const days = new Map<string, Map<number, [string, number]>>();
  hours.forEach((at, index) => {
    const local = exact(at);
    const day = days.get(local.slice(0, 10)) ?? new Map<number, [string, number]>();
    const hour = Number(local.slice(11, 13));
    const before = day.get(hour);  // the hour that comes twice when clocks go back
    day.set(hour, [before?.[0] ?? at, (before?.[1] ?? 0) + (counts[index] ?? 0)]);
    days.set(local.slice(0, 10), day);
  });
  return (
    <div class="heat" tabIndex={0} role="region" aria-label={t("calendar.by_day")}>
      <table>
        <thead><tr><th>{t("calendar.day")}</th>{Array.from({ length: 24 }, (_, hour) => <th key={hour} class="num">{String(hour).padStart(2, "0")}</th>)}</tr></thead>
        <tbody>
          {[...days].map(([day, cells]) => (
            <tr key={day}>
              <th scope="row" class="num">{weekday(`${day}T12:00:00Z`, "UTC")} {day.slice(5)}</th>
              {Array.from({ length: 24 }, (_, hour) => {
                const cell = cells.get(hour);
                return cell ? <Cell key={hour} count={cell[1]} most={most} at={cell[0]} host={host} /> : <td key={hour} class="cell" />;
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** How many run together there, on average: how long all take, over the time. */
function together(host: HostAhead, seconds: number): string {
  return host.busy_sec === null ? "–" : (host.busy_sec / seconds).toFixed(2);
}

function Hosts({ found }: { found: Forecast }) {
  const seconds = found.counts.length * found.bucket_sec;
  return (
    <table>
      <thead><tr><th>{t("calendar.host")}</th><th class="right">{t("calendar.firings")}</th><th class="right">{t("calendar.mean")}</th><th class="right" title={t("calendar.together_hint")}>{t("calendar.together")}</th><th class="wide right">{t("calendar.peak")}</th></tr></thead>
      <tbody>
        {found.hosts.map((host) => (
          <tr key={host.host}>
            <td class="mono">{host.host}</td>
            <td class="right"><Count of={host.firings} /></td>
            <td class="right num">{host.mean_sec === null ? "–" : span(host.mean_sec * 1000)}</td>
            <td class="right num">{together(host, seconds)}</td>
            <td class="wide right"><Count of={Math.max(...host.counts)} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** One hour, by minute, with the tasks that fire in it. */
function Hour({ at, host }: { at: string; host: string | null }) {
  const ahead = useData<Forecast>(`api/v1/forecast${query({ hours: 1, bucket: "1m", from: at, host })}`);
  return (
    <Section title={`${exact(at).slice(0, 16)} · ${host ?? t("calendar.all_hosts")}`} aside={<button type="button" class="plain" onClick={() => change({ at: null, host: null })}>{t("close")}</button>}>
      <Load from={ahead}>
        {(found) => found.firings === 0 ? <Empty title={t("whatif.empty")} /> : (
          <>
            <Chart label={t("calendar.by_minute")} times={found.counts.map((_, minute) => instant(found.from) / 1000 + 60 * minute)} lines={[{ name: t("calendar.firings"), colour: "--accent", values: found.counts, kind: "bars" }]} />
            <table>
              <thead><tr><th>{t("runs.task")}</th><th class="wide">{t("calendar.host")}</th><th class="right">{t("calendar.firings")}</th><th class="right">{t("calendar.mean")}</th></tr></thead>
              <tbody>
                {found.busiest.map((task) => (
                  <tr key={task.task_id}>
                    <td><a href={link(["tasks", task.task_id])}>{task.name || task.job_id}</a></td>
                    <td class="wide mono">{task.host}</td>
                    <td class="right"><Count of={task.firings} /></td>
                    <td class="right num">{task.mean_sec === null ? "–" : span(task.mean_sec * 1000)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </>
        )}
      </Load>
    </Section>
  );
}

interface Spread {
  task_id: number;
  job_id: string;
  name: string;
  host: string;
  together: number;
  now: string;
  cron_expr: string;
  becomes: string;
}

/** Tasks that fire together because they were written alike, and a way to part them. */
function Spreading() {
  const found = useData<{ suggestions: Spread[] }>("api/v1/forecast/spread", { follows: ["TASK"] });
  const [done, setDone] = useState<number[]>([]);
  const left = (found.data?.suggestions ?? []).filter((one) => !done.includes(one.task_id));
  if (!left.length) return null;
  async function spread(one: Spread) {
    const set = (cron_expr: string) => patch(`api/v1/tasks/${one.task_id}`, { cron_expr });
    await set(one.cron_expr);
    setDone((before) => [...before, one.task_id]);
    tell(t("calendar.spread_done", { name: one.name || one.job_id, expr: one.becomes }), async () => {
      await set(one.now);
      setDone((before) => before.filter((id) => id !== one.task_id));
    });
  }
  return (
    <Section title={t("calendar.spread_title")} aside={t("calendar.spread_about")}>
      <table>
        <thead><tr><th>{t("runs.task")}</th><th class="wide">{t("calendar.host")}</th><th class="right">{t("calendar.spread_together")}</th><th class="wide">{t("calendar.spread_now")}</th><th>{t("calendar.spread_becomes")}</th><th /></tr></thead>
        <tbody>
          {left.slice(0, 20).map((one) => (
            <tr key={one.task_id}>
              <td class="clip"><a href={link(["tasks", one.task_id])}>{one.name || one.job_id}</a></td>
              <td class="wide mono clip">{one.host}</td>
              <td class="right num">{one.together}</td>
              <td class="wide mono">{one.now}</td>
              <td class="mono">{one.becomes}</td>
              <td class="right"><Act does={() => spread(one)}>{t("calendar.spread")}</Act></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Section>
  );
}

export function CalendarPage() {
  const { values } = place.value;
  const isWeek = values["view"] === "week";
  const host = values["host"] ?? null;
  const ahead = useData<Forecast>(`api/v1/forecast${query({ hours: isWeek ? 168 : 24 })}`, { follows: ["TASK"] });
  return (
    <>
      <Head title={t("nav.calendar")} />
      <p class="lead">{t("calendar.what", { zone: ownZone })}</p>
      <div class="filters">
        <div class="tabs" role="group" aria-label={t("ledger.window")}>
          {(["day", "week"] as const).map((view) => <button key={view} type="button" aria-pressed={isWeek === (view === "week")} onClick={() => change({ view: view === "day" ? null : view, at: null, host: null })}>{t(`ledger.${view}`)}</button>)}
        </div>
        {isWeek && ahead.data && ahead.data.hosts.length > 0 && <Choice label={t("calendar.host")} value={host ?? ""} options={[["", t("calendar.all_hosts")], ...ahead.data.hosts.map((one): [string, string] => [one.host, one.host])]} onChange={(chosen) => change({ host: chosen || null, at: null })} />}
      </div>
      <Load from={ahead}>
        {(found) => found.firings === 0 ? (
          <Empty title={t("calendar.empty")}><a class="button" href={link(["tasks", "new"])}>{t("tasks.new")}</a></Empty>
        ) : (
          <>
            <Figures rows={[
              { name: t("calendar.firings"), value: <Count of={found.firings} /> },
              { name: t("overview.tasks"), value: <Count of={found.tasks_counted} /> },
              { name: t("calendar.peak"), value: <Count of={Math.max(...found.counts)} /> },
            ]} />
            {!found.complete && <p class="state warn"><span class="mark" aria-hidden="true">!</span>{t("calendar.some", { count: found.tasks_counted.toLocaleString("en-US") })}</p>}
            {isWeek ? <Week found={found} host={host} /> : <Day found={found} />}
            {found.elsewhere > 0 && <p class="muted">{t("calendar.elsewhere", { count: found.elsewhere.toLocaleString("en-US") })}</p>}
            {values["at"] && <Hour at={values["at"]} host={host} />}
            <Section title={t("calendar.hosts")}><Hosts found={found} /></Section>
            <Spreading />
          </>
        )}
      </Load>
    </>
  );
}
