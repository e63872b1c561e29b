// Make or change a task. While the schedule is typed it is put into words, with its next ten firings.
import { useEffect, useState } from "preact/hooks";
import { ApiError, get, patch, post } from "../api";
import { t, type Word } from "../i18n";
import { Clock, Head, Problem, Section, Time } from "../parts/basics";
import { tell } from "../parts/dialog";
import { go, link, place } from "../route";
import type { Preview, Task } from "../shapes";
import { exact, instant, ownZone, weekday } from "../time";

interface Form {
  name: string;
  description: string;
  kind: "cron" | "every" | "once";
  expr: string;
  every: string;
  at: string;
  zone: string;
  method: string;
  url: string;
  headers: string;
  body: string;
  timeout: string;
  retries: string;
  overlap: string;
  limit: string;
  misfire: string;
  tags: string;
}

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"];
const WAIT_MS = 250;

const BLANK: Form = {
  name: "", description: "", kind: "cron", expr: "*/5 * * * *", every: "30s", at: "", zone: ownZone, method: "GET", url: "", headers: "", body: "",
  timeout: "10", retries: "0", overlap: "QUEUE", limit: "1", misfire: "FIRE_NOW", tags: "",
};

function formOf(task: Task): Form {
  return {
    name: task.name,
    description: task.description,
    kind: task.schedule.kind,
    expr: task.schedule.expr ?? BLANK.expr,
    every: task.schedule.every ?? BLANK.every,
    at: task.schedule.run_at ? exact(task.schedule.run_at).replace(" ", "T") : "",
    zone: task.timezone,
    method: task.http_method,
    url: task.target_url,
    headers: Object.entries(task.headers).map(([name, value]) => `${name}: ${value}`).join("\n"),
    body: task.body_template ?? "",
    timeout: String(task.timeout_seconds),
    retries: String(task.retry_policy.max_retries),
    overlap: task.concurrency_policy,
    limit: String(task.max_concurrency),
    misfire: task.misfire_policy,
    tags: task.tags.join(", "),
  };
}

function scheduleOf(form: Form): Record<string, unknown> {
  if (form.kind === "cron") return { kind: "cron", expr: form.expr, timezone: form.zone };
  if (form.kind === "every") return { kind: "every", every: form.every };
  const at = new Date(form.at);
  return { kind: "once", run_at: Number.isNaN(at.getTime()) ? form.at : at.toISOString() };
}

function readHeaders(text: string): Record<string, string> {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf(":");
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

/** A change is merged into the task: a header that was struck out has to be named to go. */
function headersOf(form: Form, old: Task | null): Record<string, string | null> {
  const gone = Object.keys(old?.headers ?? {}).map((name): [string, null] => [name, null]);
  return { ...Object.fromEntries(gone), ...readHeaders(form.headers) };
}

function bodyOf(form: Form, old: Task | null): Record<string, unknown> {
  const shared = {
    name: form.name,
    description: form.description,
    schedule: scheduleOf(form),
    retry_policy: { ...(old ? old.retry_policy : {}), max_retries: Number(form.retries) },
    concurrency_policy: form.overlap,
    max_concurrency: Number(form.limit),
    misfire_policy: form.misfire,
    ...(form.misfire === "CATCH_UP_LIMITED" ? { catchup_limit: old?.catchup_limit || 10 } : {}),
    tags: form.tags.split(",").map((tag) => tag.trim()).filter(Boolean),
  };
  if (old && old.type !== "http") return { ...shared, type: old.type, ...(old.type === "queue" ? { queue: old.queue } : { node: old.node }) };
  return { ...shared, http_method: form.method, target_url: form.url, headers: headersOf(form, old), body_template: form.body, timeout_seconds: Number(form.timeout) };
}

/** How often it fires, worked out from the firings shown. */
function pace(preview: Preview): string {
  const first = preview.next[0];
  const last = preview.next.at(-1);
  if (!first || !last || preview.next.length < 2) return "";
  const gap = (instant(last.at) - instant(first.at)) / (preview.next.length - 1);
  const day = Math.round(86_400_000 / gap);
  return day >= 1 ? t(day > 5000 ? "editor.pace_high" : "editor.pace", { count: day.toLocaleString("en-US") }) : t("editor.pace_rare");
}

function Firings({ form }: { form: Form }) {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const schedule = JSON.stringify(scheduleOf(form));
  useEffect(() => {
    let isHere = true;
    const timer = setTimeout(() => {
      post<Preview>("api/v1/schedules/preview", { schedule: JSON.parse(schedule), name: form.name.slice(0, 128), count: 10 }).then(
        (found) => { if (isHere) { setPreview(found); setError(null); } },
        (failure: Error) => { if (isHere) setError(failure); },
      );
    }, WAIT_MS);
    return () => { isHere = false; clearTimeout(timer); };
  }, [schedule, form.name]);
  return (
    <Section title={t("editor.firings")}>
      <Problem error={error} />
      {preview && !error && (
        <>
          <p class="words">{preview.description}</p>
          <p class="muted">{pace(preview)}</p>
          <ol class="timeline firings">
            {preview.next.map((firing) => (
              <li key={firing.at}>
                <Clock at={firing.at} />
                <span>{weekday(firing.at)} · <Time at={firing.at} zone={form.zone} />{form.kind === "cron" && form.zone !== ownZone && <span class="muted num"> {firing.local.slice(11, 19)} {form.zone}</span>}{firing.note && <em> {firing.note}</em>}</span>
              </li>
            ))}
          </ol>
        </>
      )}
    </Section>
  );
}

const zones = Intl.supportedValuesOf("timeZone");

function Field({ word, hint, error, children }: { word: Word; hint?: Word; error?: string | null; children: preact.ComponentChildren }) {
  return (
    <label class="field">
      <span>{t(word)}</span>
      {children}
      {hint && <small class="muted">{t(hint)}</small>}
      {error && <small class="problem" role="alert">✕ {error}</small>}
    </label>
  );
}

function Inputs({ form, set, isHttp, error }: { form: Form; set: (values: Partial<Form>) => void; isHttp: boolean; error: Error | null }) {
  const at = (name: string) => (error instanceof ApiError && (error.field === name || error.field?.startsWith(`${name}.`)) ? error.message : null);
  const text = (name: keyof Form, more: preact.JSX.InputHTMLAttributes = {}) => <input {...more} value={form[name]} onInput={(event) => set({ [name]: event.currentTarget.value })} />;
  const pick = (name: keyof Form, options: [string, string][]) => (
    <select value={form[name]} onChange={(event) => set({ [name]: event.currentTarget.value })}>{options.map(([code, word]) => <option key={code} value={code}>{word}</option>)}</select>
  );
  return (
    <>
      <Field word="tasks.name" error={at("name")}>{text("name", { required: true, maxLength: 128, autofocus: true })}</Field>
      <fieldset>
        <legend>{t("tasks.schedule")}</legend>
        <Field word="editor.kind">{pick("kind", [["cron", t("editor.cron")], ["every", t("editor.every")], ["once", t("editor.once")]])}</Field>
        {form.kind === "cron" && <Field word="editor.expr" hint="editor.expr_hint">{text("expr", { class: "mono", required: true, spellcheck: false })}</Field>}
        {form.kind === "cron" && <Field word="editor.zone">{text("zone", { list: "zones", required: true })}</Field>}
        {form.kind === "every" && <Field word="editor.span" hint="editor.span_hint">{text("every", { class: "mono", required: true })}</Field>}
        {form.kind === "once" && <Field word="editor.at">{text("at", { type: "datetime-local", step: "1", required: true })}</Field>}
        <datalist id="zones">{["UTC", ...zones].map((zone) => <option key={zone} value={zone} />)}</datalist>
      </fieldset>
      {isHttp && (
        <fieldset>
          <legend>{t("editor.call")}</legend>
          <Field word="editor.method">{pick("method", METHODS.map((name): [string, string] => [name, name]))}</Field>
          <Field word="editor.target" error={at("target_url")}>{text("url", { type: "url", required: true, placeholder: "https://…" })}</Field>
          <Field word="editor.headers" hint="editor.headers_hint" error={at("headers")}><textarea rows={2} class="mono" value={form.headers} onInput={(event) => set({ headers: event.currentTarget.value })} /></Field>
          <Field word="editor.body" error={at("body_template")}><textarea rows={3} class="mono" value={form.body} onInput={(event) => set({ body: event.currentTarget.value })} /></Field>
          <Field word="editor.timeout" error={at("timeout_seconds")}>{text("timeout", { type: "number", min: "0.001", step: "any", required: true })}</Field>
        </fieldset>
      )}
      <fieldset>
        <legend>{t("editor.rules")}</legend>
        <Field word="editor.retries" error={at("retry_policy")}>{text("retries", { type: "number", min: "0", step: "1", required: true })}</Field>
        <Field word="editor.overlap">{pick("overlap", [["QUEUE", t("overlap.QUEUE")], ["SKIP", t("overlap.SKIP")], ["PARALLEL", t("overlap.PARALLEL")]])}</Field>
        <Field word="editor.limit">{text("limit", { type: "number", min: "1", step: "1", required: true })}</Field>
        <Field word="editor.misfire">{pick("misfire", [["FIRE_NOW", t("misfire.FIRE_NOW")], ["SKIP", t("misfire.SKIP")], ["CATCH_UP_LIMITED", t("misfire.CATCH_UP_LIMITED")]])}</Field>
        <Field word="editor.tags" hint="editor.tags_hint" error={at("tags")}>{text("tags")}</Field>
        <Field word="editor.description">{text("description", { maxLength: 512 })}</Field>
      </fieldset>
    </>
  );
}

export function Editor({ id }: { id: number | null }) {
  const from = id ?? (Number(place.value.values["from"]) || null);
  const [old, setOld] = useState<Task | null>(null);
  const [form, setForm] = useState<Form | null>(from === null ? BLANK : null);
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    if (from === null) return;
    get<Task>(`api/v1/tasks/${from}`).then((task) => {
      setOld(task);
      setForm(id === null ? { ...formOf(task), name: `${task.name} (2)` } : formOf(task));
    }, setError);
  }, [from, id]);

  async function save(event: Event) {
    event.preventDefault();
    if (!form) return;
    setBusy(true);
    setError(null);
    try {
      const body = bodyOf(form, old);
      const saved = id === null ? await post<Task>("api/v1/tasks", body) : await patch<Task>(`api/v1/tasks/${id}`, { ...body, version: old?.version });
      tell(t(id === null ? "editor.made" : "editor.changed", { name: saved.name }));
      go(link(["tasks", saved.id]));
    } catch (failure) {
      setError(failure as Error);
      setBusy(false);
    }
  }
  return (
    <>
      <Head title={t(id === null ? "tasks.new" : "task.edit")} />
      {!form ? <Problem error={error} /> : (
        <div class="editor">
          <form onSubmit={(event) => void save(event)}>
            <Inputs form={form} set={(values) => setForm({ ...form, ...values })} isHttp={!old || old.type === "http"} error={error} />
            <Problem error={error} />
            <div class="actions">
              <a class="button" href={link(id === null ? ["tasks"] : ["tasks", id])}>{t("cancel")}</a>
              <button class="primary" disabled={isBusy}>{t(id === null ? "editor.make" : "editor.save")}</button>
            </div>
          </form>
          <Firings form={form} />
        </div>
      )}
    </>
  );
}
