// What a page shows: loaded from the API, loaded again when it changed, never taken away while the new one is on its way.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, refused } from "./api";
import { anew, beats, paused } from "./live";

export interface Loaded<T> {
  data: T | null;
  error: ApiError | Error | null;
  /** There is something newer, and the reader is in the midst of the old. */
  isStale: boolean;
  reload: () => void;
}

const LEAST_PAUSE_MS = 1000;
const TOP_PX = 60;

/** Whether new rows would push away what somebody reads or is about to press. */
function isReading(): boolean {
  return scrollY > TOP_PX || document.querySelector("dialog[open]") !== null;
}

interface Options {
  /** Kinds of entities whose events mean a change. */
  follows?: string[];
  /** New rows come in on top: wait for the reader. */
  isList?: boolean;
  /** The least time between two loads, where one costs more than others. */
  pauseMs?: number;
}

export function useData<T>(path: string | null, options: Options = {}): Loaded<T> {
  const [shown, setShown] = useState<{ path: string; data: T } | null>(null);
  const [error, setError] = useState<ApiError | Error | null>(null);
  const [isStale, setStale] = useState(false);
  const [turn, setTurn] = useState(0);
  const lastAt = useRef(0);

  useEffect(() => {
    if (path === null || refused.value !== null) return;
    const abort = new AbortController();
    get<T>(path, abort.signal).then(
      (data) => {
        if (abort.signal.aborted) return;
        setShown({ path, data });
        setError(null);
        setStale(false);
      },
      (failure: Error) => {
        if (!abort.signal.aborted) setError(failure);
      },
    );
    lastAt.current = Date.now();
    return () => abort.abort();
  }, [path, turn, refused.value]);

  const follows = options.follows ?? [];
  const seen = follows.reduce((sum, kind) => sum + (beats.value[kind] ?? 0), 0) + anew.value * 1e9;
  const before = useRef(seen);
  useEffect(() => {
    if (seen === before.current || !follows.length || paused.value) return;
    const wait = Math.max(0, (options.pauseMs ?? LEAST_PAUSE_MS) - (Date.now() - lastAt.current));
    const timer = setTimeout(() => {
      if (paused.value) return;
      before.current = seen;
      if (options.isList && isReading()) setStale(true);
      else setTurn((old) => old + 1);
    }, wait);
    return () => clearTimeout(timer);
  }, [seen]);

  const data = shown !== null && samePage(shown.path, path) ? shown.data : null;
  return { data, error, isStale, reload: () => setTurn((old) => old + 1) };
}

/** Another filter of the same list keeps the old rows until the new ones are there; another thing does not. */
function samePage(one: string, other: string | null): boolean {
  return other !== null && one.split("?")[0] === other.split("?")[0];
}
