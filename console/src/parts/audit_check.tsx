// Verification of the audit: portion after portion, with its progress, until all is verified, something is wrong or somebody stops it.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, query } from "../api";
import { t, type Word } from "../i18n";
import { Problem } from "./basics";

interface Portion {
  ok: boolean;
  checked: number;
  anchors: number;
  restarted: boolean;
  next_cursor: string | null;
  first_fault: { kind: string; chain: number; seq: number; message: string } | null;
}

type Outcome = "none" | "running" | "stopped" | "whole" | "wrong";

interface Shown {
  outcome: Outcome;
  entries: number;
  anchors: number;
  fault: Portion["first_fault"];
}

const NOTHING: Shown = { outcome: "none", entries: 0, anchors: 0, fault: null };

/** Read portions to the end, telling of each. */
async function verify(abort: AbortSignal, tell: (shown: Shown) => void): Promise<void> {
  let shown: Shown = { ...NOTHING, outcome: "running" };
  let cursor: string | null = null;
  tell(shown);
  do {
    const portion: Portion = await get<Portion>(`scheduler/audit/verify${query({ cursor })}`, abort);
    if (abort.aborted) return;
    const before: Shown = portion.restarted ? NOTHING : shown;
    shown = { outcome: "running", entries: before.entries + portion.checked, anchors: before.anchors + portion.anchors, fault: portion.first_fault };
    cursor = portion.next_cursor;
    tell({ ...shown, outcome: shown.fault ? "wrong" : cursor === null ? "whole" : "running" });
  } while (cursor !== null && !shown.fault);
}

function Words({ shown }: { shown: Shown }) {
  const count = shown.entries.toLocaleString("en-US");
  switch (shown.outcome) {
    case "none": return <span class="muted">{t("gov.verify_none")}</span>;
    case "running": return <span>{t("gov.verify_progress", { count })}</span>;
    case "stopped": return <span>{t("gov.verify_stopped", { count })}</span>;
    case "whole": return <span class="state ok"><span class="mark" aria-hidden="true">✓</span>{t("gov.verify_whole", { count, anchors: shown.anchors.toLocaleString("en-US") })}</span>;
    case "wrong": {
      const fault = shown.fault;
      const what = fault && t(fault.chain < 0 ? "gov.verify_anchor" : (`fault.${fault.kind}` as Word), { seq: fault.seq, chain: fault.chain });
      return <span class="state bad" title={fault?.message}><span class="mark" aria-hidden="true">✕</span>{t("gov.verify_fault", { what: what ?? "" })}</span>;
    }
  }
}

export function AuditCheck() {
  const [shown, setShown] = useState(NOTHING);
  const [error, setError] = useState<Error | null>(null);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);

  function start() {
    const own = new AbortController();
    abort.current = own;
    setError(null);
    verify(own.signal, setShown).catch((failure: Error) => {
      if (own.signal.aborted) return;
      setShown(NOTHING);
      setError(failure);
    });
  }

  function stop() {
    abort.current?.abort();
    setShown((old) => ({ ...old, outcome: "stopped" }));
  }

  const isRunning = shown.outcome === "running";
  return (
    <>
      <p class="check" aria-live="polite">
        <button type="button" onClick={isRunning ? stop : start}>{t(isRunning ? "gov.verify_stop" : "gov.verify")}</button> <Words shown={shown} />
      </p>
      <Problem error={error} />
    </>
  );
}
