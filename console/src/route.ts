// The place in the console, kept in the URL's fragment: `#/runs?status=FAILED`. It works behind any path prefix.
import { computed, signal } from "@preact/signals";

export interface Place {
  parts: string[];
  values: Record<string, string>;
}

const fragment = signal(location.hash);
addEventListener("hashchange", () => {
  fragment.value = location.hash;
});

export const place = computed<Place>(() => {
  const [path = "", search = ""] = fragment.value.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts: parts.length ? parts : ["overview"], values: Object.fromEntries(new URLSearchParams(search)) };
});

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function link(parts: (string | number)[], values: Record<string, string | number | null | undefined> = {}): string {
  const set = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
  return `#/${parts.map((part) => encodeURIComponent(String(part))).join("/")}${search ? `?${search}` : ""}`;
}

export function go(href: string): void {
  location.hash = href;
}

/** Change some of this page's values. What is typed letter by letter leaves no trail in the history. */
export function change(values: Record<string, string | null>, leavesTrail = true): void {
  const { parts, values: old } = place.value;
  const href = link(parts, { ...old, ...values });
  if (leavesTrail) location.hash = href;
  else {
    history.replaceState(null, "", href);
    fragment.value = href;
  }
}
