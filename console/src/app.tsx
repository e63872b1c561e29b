// The frame: navigation, live state, language, theme; and which page is shown.
import type { ComponentChild } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { key, refused, signOut } from "./api";
import { t } from "./i18n";
import { connection, paused } from "./live";
import { CalendarPage } from "./pages/calendar";
import { Editor } from "./pages/editor";
import { GovernancePage } from "./pages/governance";
import { JobPage } from "./pages/job";
import { LedgerPage } from "./pages/ledger";
import { LettersPage } from "./pages/letters";
import { NodesPage } from "./pages/nodes";
import { ObjectPage } from "./pages/object";
import { Overview } from "./pages/overview";
import { QueuePage } from "./pages/queue";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { SettingsPage } from "./pages/settings";
import { SignIn } from "./pages/sign_in";
import { TaskPage } from "./pages/task";
import { TasksPage } from "./pages/tasks";
import { WhatIfPage } from "./pages/what_if";
import { Empty } from "./parts/basics";
import { Confirm, Toast } from "./parts/dialog";
import { Help, PLACES, openHelp } from "./parts/keyboard";
import { lang, theme, type Theme } from "./prefs";
import { link, place } from "./route";

const THEMES: Theme[] = ["auto", "light", "dark"];

function pageOf(parts: string[]): ComponentChild {
  const [first = "", id, then] = parts;
  if (first === "overview") return <Overview />;
  if (first === "tasks" && id === "new") return <Editor id={null} />;
  if (first === "tasks" && id && then === "edit") return <Editor id={Number(id)} />;
  if (first === "tasks" && id) return <TaskPage id={Number(id)} key={id} />;
  if (first === "tasks") return <TasksPage />;
  if (first === "runs" && id) return <RunPage id={id} key={id} />;
  if (first === "runs") return <RunsPage />;
  if (first === "what-if") return <WhatIfPage />;
  if (first === "calendar") return <CalendarPage />;
  if (first === "ledger") return <LedgerPage />;
  if (first === "queue" && id) return <JobPage id={id} key={id} />;
  if (first === "queue") return <QueuePage />;
  if (first === "governance" && id && then) return <ObjectPage type={id} id={then} key={`${id}/${then}`} />;
  if (first === "governance") return <GovernancePage />;
  if (first === "nodes") return <NodesPage />;
  if (first === "letters") return <LettersPage />;
  if (first === "settings") return <SettingsPage />;
  return <Empty title={t("nothing_here")}><a class="button" href={link(["overview"])}>{t("nav.overview")}</a></Empty>;
}

function Navigation({ current }: { current: string }) {
  const bar = useRef<HTMLElement>(null);
  // On a phone the bar is wider than the screen.
  useEffect(() => {
    const here = bar.current?.querySelector<HTMLElement>("[aria-current]");
    if (bar.current && here) bar.current.scrollLeft = here.offsetLeft - bar.current.clientWidth / 2;
  }, [current]);
  return (
    <nav class="places" aria-label={t("nav.label")} ref={bar}>
      {PLACES.map(([, page, word]) => (
        <a key={page} href={link([page])} aria-current={page === current ? "page" : undefined}>
          {t(word)}
        </a>
      ))}
    </nav>
  );
}

function LiveState() {
  const state = paused.value ? "paused" : connection.value;
  return (
    <button type="button" class={`live ${state}`} aria-pressed={paused.value} title={t("live.hint")} onClick={() => { paused.value = !paused.value; }}>
      <span class="dot" aria-hidden="true" />
      {t(`live.${state}`)}
    </button>
  );
}

function Tools() {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "auto";
  return (
    <div class="tools">
      <LiveState />
      <button type="button" class="plain" onClick={() => { lang.value = lang.value === "en" ? "zh" : "en"; }} lang={lang.value === "en" ? "zh-CN" : "en"}>
        {lang.value === "en" ? "中文" : "English"}
      </button>
      <button type="button" class="plain" onClick={() => { theme.value = next; }} title={t("theme.hint")}>
        {t(`theme.${theme.value}`)}
      </button>
      <button type="button" class="plain" onClick={openHelp} aria-label={t("help.title")}>?</button>
      {key.value !== null && <button type="button" class="plain" onClick={signOut}>{t("sign_out")}</button>}
    </div>
  );
}

export function App() {
  const { parts } = place.value;
  const page = parts[0] ?? "overview";
  const where = parts.join("/");
  useEffect(() => scrollTo(0, 0), [where]);
  const named = PLACES.find(([, name]) => name === page);
  useEffect(() => {
    document.title = named ? `${t(named[2])} · Ksana` : "Ksana";
  }, [page, lang.value]);
  if (refused.value !== null) return <SignIn why={refused.value} />;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>{t("skip")}</a>
      <div class="frame">
        <aside>
          <a class="brand" href={link(["overview"])}>Ksana</a>
          <Navigation current={page} />
          <Tools />
        </aside>
        <main id="main" tabIndex={-1}>{pageOf(parts)}</main>
      </div>
      <Confirm />
      <Help />
      <Toast />
    </>
  );
}
