// Questions before what cannot be undone, with its size.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { t } from "../i18n";
import { Problem } from "./basics";

interface Question {
  text: string;
  verb: string;
  does: () => Promise<unknown>;
}

const asked = signal<Question | null>(null);

export function confirm(question: Question): void {
  asked.value = question;
}

export function Confirm() {
  const question = asked.value;
  const dialog = useRef<HTMLDialogElement>(null);
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    setError(null);
    if (question) dialog.current?.showModal();
    else dialog.current?.close();
  }, [question]);

  async function proceed() {
    if (!question) return;
    setBusy(true);
    try {
      await question.does();
      asked.value = null;
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setBusy(false);
    }
  }
  return (
    <dialog ref={dialog} aria-label={t("confirm.title")} onClose={() => { asked.value = null; }}>
      <p>{question?.text}</p>
      <Problem error={error} />
      <div class="actions">
        <button type="button" onClick={() => { asked.value = null; }}>{t("cancel")}</button>
        <button type="button" class="danger" disabled={isBusy} onClick={() => void proceed()}>{question?.verb}</button>
      </div>
    </dialog>
  );
}

const said = signal<{ text: string; undo: (() => Promise<unknown>) | undefined } | null>(null);
let timer = 0;

/** Say what was done for a few seconds; with a way back where there is one. */
export function tell(text: string, undo?: () => Promise<unknown>): void {
  said.value = { text, undo };
  window.clearTimeout(timer);
  timer = window.setTimeout(() => { said.value = null; }, undo ? 10_000 : 5000);
}

export function Toast() {
  const now = said.value;
  return (
    <div class="toast" role="status">
      {now && (
        <p>
          {now.text}
          {now.undo && (
            <button type="button" class="plain" onClick={() => { void now.undo?.(); said.value = null; }}>{t("undo")}</button>
          )}
        </p>
      )}
    </div>
  );
}
