// What a person chose for this browser: language, theme. The key is never among it.
import { effect, signal } from "@preact/signals";

export type Lang = "en" | "zh";
export type Theme = "auto" | "light" | "dark";

function recall<T extends string>(name: string, allowed: readonly T[], otherwise: T): T {
  try {
    const found = localStorage.getItem(`ksana.${name}`) as T | null;
    return found !== null && allowed.includes(found) ? found : otherwise;
  } catch {
    return otherwise;
  }
}

function keep(name: string, value: string): void {
  try {
    localStorage.setItem(`ksana.${name}`, value);
  } catch {
    // Storage may be switched off; the choice then lasts as long as the page.
  }
}

export const lang = signal<Lang>(recall("lang", ["en", "zh"], navigator.language.startsWith("zh") ? "zh" : "en"));
export const theme = signal<Theme>(recall("theme", ["auto", "light", "dark"], "auto"));

effect(() => {
  keep("lang", lang.value);
  document.documentElement.lang = lang.value === "zh" ? "zh-CN" : "en";
});
effect(() => {
  keep("theme", theme.value);
  document.documentElement.dataset["theme"] = theme.value;
});

const dark = matchMedia("(prefers-color-scheme: dark)");
/** Counts up when the colours change, so that what is drawn on a canvas is drawn anew. */
export const repaint = signal(0);
dark.addEventListener("change", () => repaint.value++);
effect(() => {
  void theme.value;
  repaint.value = repaint.peek() + 1;
});
