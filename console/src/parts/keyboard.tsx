// Keys: `/` to search, `g` and a letter to go somewhere, `?` for this list.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { t, type Word } from "../i18n";
import { paused } from "../live";
import { go, link } from "../route";

export const PLACES: [letter: string, page: string, word: Word][] = [
  ["o", "overview", "nav.overview"],
  ["t", "tasks", "nav.tasks"],
  ["r", "runs", "nav.runs"],
  ["c", "calendar", "nav.calendar"],
  ["l", "ledger", "nav.ledger"],
  ["w", "what-if", "nav.whatif"],
  ["q", "queue", "nav.queue"],
  ["v", "governance", "nav.governance"],
  ["n", "nodes", "nav.nodes"],
  ["d", "letters", "nav.letters"],
  ["s", "settings", "nav.settings"],
];

const isHelpOpen = signal(false);
let isGoing = false;

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

function press(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") (event.target as HTMLElement).blur();
    return;
  }
  if (isGoing) {
    isGoing = false;
    const found = PLACES.find(([letter]) => letter === event.key);
    if (found) go(link([found[1]]));
    return;
  }
  if (event.key === "g") isGoing = true;
  else if (event.key === "?") isHelpOpen.value = !isHelpOpen.value;
  else if (event.key === "p") paused.value = !paused.value;
  else if (event.key === "/") focusSearch(event);
}

function focusSearch(event: KeyboardEvent): void {
  event.preventDefault();
  const field = document.querySelector<HTMLInputElement>("input.search");
  if (field) field.focus();
  else {
    go(link(["tasks"]));
    setTimeout(() => document.querySelector<HTMLInputElement>("input.search")?.focus(), 100);
  }
}

export function startKeyboard(): void {
  addEventListener("keydown", press);
}

export function openHelp(): void {
  isHelpOpen.value = true;
}

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  const isOpen = isHelpOpen.value;
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  return (
    <dialog ref={dialog} aria-label={t("help.title")} onClose={() => { isHelpOpen.value = false; }}>
      <h2>{t("help.title")}</h2>
      <dl class="keys">
        <dt><kbd>/</kbd></dt><dd>{t("help.search")}</dd>
        {PLACES.map(([letter, page, word]) => [
          <dt key={page}><kbd>g</kbd> <kbd>{letter}</kbd></dt>,
          <dd key={`${page}.`}>{t(word)}</dd>,
        ])}
        <dt><kbd>p</kbd></dt><dd>{t("help.pause")}</dd>
        <dt><kbd>?</kbd></dt><dd>{t("help.this")}</dd>
      </dl>
      <div class="actions">
        <button type="button" onClick={() => { isHelpOpen.value = false; }}>{t("close")}</button>
      </div>
    </dialog>
  );
}
