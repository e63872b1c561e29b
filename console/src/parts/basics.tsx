// Small parts that every page uses.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError } from "../api";
import type { Loaded } from "../data";
import { say, t } from "../i18n";
import { link } from "../route";
import type { Run } from "../shapes";
import { exact, now, ownZone, relative, short } from "../time";

type Tone = "ok" | "bad" | "warn" | "busy" | "idle";

const TONES: Record<string, Tone> = {
  SUCCESS: "ok", CALLBACK_SUCCESS: "ok", SUCCEEDED: "ok", DONE: "ok", ENABLED: "ok", open: "ok", ready: "ok", ran: "ok", succeeded: "ok", success: "ok", will_run: "ok", live: "ok", active: "ok", verified: "ok",
  FAILED: "bad", LOST: "bad", TIMEOUT: "bad", FAILED_TIMEOUT: "bad", dead: "bad", failed: "bad", missed: "bad", closed: "bad", "not ready": "bad", off: "bad", dead_letter: "bad", refuted: "bad", rejected_poisoned: "bad", invalidated: "bad",
  RETRYING: "warn", SKIPPED: "warn", CALLBACK_PENDING: "warn", skipped: "warn", draining: "warn", review: "warn", will_not_run: "warn", polling: "warn", quarantine: "warn", stale: "warn", stale_uncertain: "warn", needs_review: "warn", needs_revalidate: "warn",
  RUNNING: "busy", LEASED: "busy", CLAIMED: "busy", running: "busy", leased: "busy",
};
const MARKS: Record<Tone, string> = { ok: "✓", bad: "✕", warn: "!", busy: "▸", idle: "·" };

export function toneOf(state: string): Tone {
  return TONES[state] ?? "idle";
}

/** A state: mark, colour and word together, so that none of them stands alone. */
export function State({ of }: { of: string }) {
  const tone = toneOf(of);
  return (
    <span class={`state ${tone}`}>
      <span class="mark" aria-hidden="true">{MARKS[tone]}</span>
      {say("state", of)}
    </span>
  );
}

/** A time as people read it; the exact one, in two zones where they differ, on top of it. */
export function Time({ at, zone }: { at: string | null; zone?: string }) {
  void now.value;
  if (!at) return <span class="muted">–</span>;
  const both = `${exact(at)} ${ownZone}` + (zone && zone !== ownZone ? `\n${exact(at, zone)} ${zone}` : "");
  return (
    <time dateTime={at} title={both}>
      {relative(at)}
    </time>
  );
}

/** A time of day, lined up in a column. */
export function Clock({ at, zone }: { at: string | null; zone?: string }) {
  if (!at) return <span class="muted">–</span>;
  return (
    <time dateTime={at} title={`${exact(at, zone)} ${zone ?? ownZone}\n${relative(at)}`} class="num">
      {short(at, zone)}
    </time>
  );
}

export function Number({ of }: { of: number | null | undefined }) {
  return <span class="num">{of === null || of === undefined ? "–" : of.toLocaleString("en-US")}</span>;
}

/** The task of a run: a timer without a name by what it calls; one that was deleted has a number only. */
export function TaskName({ of: run }: { of: Run }) {
  if (run.task_name === null) return <span class="muted">#{run.task_id}</span>;
  return <a href={link(["tasks", run.task_id])}>{run.task_name || run.task_target || `#${run.task_id}`}</a>;
}

/** What a task is called: a timer without a name by its id. */
export function nameOf(task: { name: string; job_id: string }): string {
  return task.name || task.job_id;
}

export function Head({ title, children }: { title: ComponentChildren; children?: ComponentChildren }) {
  return (
    <header class="head">
      <h1>{title}</h1>
      <div class="actions">{children}</div>
    </header>
  );
}

export function Section({ title, aside, children }: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section>
      <h2>
        {title}
        {aside && <span class="aside">{aside}</span>}
      </h2>
      {children}
    </section>
  );
}

/** Pairs of a name and a value. Rows without a value are left out. */
export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows
        .filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export function Figures({ rows }: { rows: { name: string; value: ComponentChildren; href?: string; tone?: Tone }[] }) {
  return (
    <div class="figures">
      {rows.map(({ name, value, href, tone }) => {
        const inside = (
          <>
            <span class={`value num ${tone ?? ""}`}>{value}</span>
            <span class="name">{name}</span>
          </>
        );
        return href ? <a key={name} href={href}>{inside}</a> : <div key={name}>{inside}</div>;
      })}
    </div>
  );
}

/** Nothing here yet: what to do next. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="what">{title}</p>
      {children}
    </div>
  );
}

export function Problem({ error }: { error: Error | null }) {
  if (!error) return null;
  const text = error instanceof ApiError ? error.message : t("error.network");
  return (
    <p class="problem" role="alert">
      <span class="mark" aria-hidden="true">✕</span> {text}
    </p>
  );
}

/** The frame of something loaded: its problem, that there is something newer, or that it is on its way. */
export function Load<T>({ from, children }: { from: Loaded<T>; children: (data: T) => ComponentChildren }) {
  return (
    <>
      <Problem error={from.error} />
      {from.isStale && (
        <button class="newer" onClick={() => { scrollTo(0, 0); from.reload(); }}>
          {t("list.newer")}
        </button>
      )}
      {from.data !== null ? children(from.data) : from.error ? null : <p class="muted loading">{t("list.loading")}</p>}
    </>
  );
}

/** A button that says what came of it, and cannot be pressed twice at once. */
export function Act({ does, children, kind = "", disabled = false }: { does: () => Promise<unknown>; children: ComponentChildren; kind?: string; disabled?: boolean }) {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  async function press() {
    setBusy(true);
    setError(null);
    try {
      await does();
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setBusy(false);
    }
  }
  return (
    <>
      <button type="button" class={kind} disabled={isBusy || disabled} onClick={() => void press()}>
        {children}
      </button>
      <Problem error={error} />
    </>
  );
}

export function Choice({ label, value, options, onChange }: { label: string; value: string; options: [string, string][]; onChange: (value: string) => void }) {
  return (
    <label class="choice">
      <span class="hidden">{label}</span>
      <select aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map(([code, name]) => (
          <option key={code} value={code}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Search({ label, value, onInput }: { label: string; value: string; onInput: (value: string) => void }) {
  return (
    <input
      type="search"
      class="search"
      placeholder={`${label}  ( / )`}
      aria-label={label}
      value={value}
      onInput={(event: JSX.TargetedInputEvent<HTMLInputElement>) => onInput(event.currentTarget.value)}
    />
  );
}

/** From one page to the next: never more than one is loaded. `byId`: the first page is not the newest. */
export function Pager({ cursor, next, total, byId = false, change }: { cursor: string | undefined; next: number | string | null; total?: number; byId?: boolean; change: (values: { cursor: string | null }) => void }) {
  if (!cursor && next === null) return total === undefined ? null : <p class="pager muted">{t("list.total", { total })}</p>;
  return (
    <nav class="pager" aria-label={t("list.pages")}>
      <button type="button" disabled={!cursor} onClick={() => change({ cursor: null })}>{t(byId ? "list.start" : "list.first")}</button>
      <button type="button" disabled={next === null} onClick={() => change({ cursor: String(next) })}>{t("list.next")}</button>
      {total !== undefined && <span class="muted">{t("list.total", { total })}</span>}
    </nav>
  );
}

/** Text or JSON as it came, laid out if it can be. */
export function Code({ text }: { text: string | null }) {
  if (text === null || text === "") return <span class="muted">{t("none")}</span>;
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Not JSON: shown as it is.
  }
  return <pre tabIndex={0}>{shown}</pre>;
}
