// Times for readers: relative and exact, in the viewer's zone and in another.
import { signal } from "@preact/signals";
import { t } from "./i18n";
import { lang } from "./prefs";

/** Counts the seconds; whoever shows a relative time reads it. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

export const ownZone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

const formats = new Map<string, Intl.DateTimeFormat>();
function formatOf(zone: string, options: Intl.DateTimeFormatOptions, name: string): Intl.DateTimeFormat {
  const id = `${zone} ${name} ${lang.value}`;
  let found = formats.get(id);
  if (!found) {
    const locale = lang.value === "zh" ? "zh-CN" : "en-GB";
    try {
      found = new Intl.DateTimeFormat(locale, { ...options, timeZone: zone, hourCycle: "h23" });
    } catch {
      found = new Intl.DateTimeFormat(locale, { ...options, timeZone: "UTC", hourCycle: "h23" });
    }
    formats.set(id, found);
  }
  return found;
}

const DAY: Intl.DateTimeFormatOptions = { year: "numeric", month: "2-digit", day: "2-digit" };
const CLOCK: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** `2026-11-17 09:00:00`: the same order in every language, so that columns line up. */
export function exact(text: string, zone = ownZone): string {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return text;
  const part: Record<string, string> = {};
  for (const { type, value } of formatOf(zone, { ...DAY, ...CLOCK }, "exact").formatToParts(at)) part[type] = value;
  return `${part["year"]}-${part["month"]}-${part["day"]} ${part["hour"]}:${part["minute"]}:${part["second"]}`;
}

/** The time of day, with the day before it unless it is today. */
export function short(text: string, zone = ownZone): string {
  const whole = exact(text, zone);
  return whole.slice(0, 10) === exact(new Date(now.value).toISOString(), zone).slice(0, 10) ? whole.slice(11) : whole.slice(5);
}

export function weekday(text: string, zone = ownZone): string {
  return formatOf(zone, { weekday: "short" }, "weekday").format(new Date(text));
}

export function relative(text: string): string {
  const apart = (new Date(text).getTime() - now.value) / 1000;
  const span = spanWords(Math.abs(apart));
  if (Math.abs(apart) < 1) return t("time.now");
  return apart > 0 ? t("time.in", { span }) : t("time.ago", { span });
}

function spanWords(seconds: number): string {
  if (seconds < 60) return `${Math.round(seconds)} ${t("time.s")}`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} ${t("time.m")}`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} ${t("time.h")}`;
  return `${Math.round(seconds / 86_400)} ${t("time.d")}`;
}

/** A duration with three digits: `0`, `0.34 ms`, `12.0 ms`, `1.02 s`, `3 m 20 s`. */
export function span(ms: number | null): string {
  if (ms === null || Number.isNaN(ms)) return "–";
  if (ms === 0) return "0";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60 ? `${minutes} m ${Math.round((ms % 60_000) / 1000)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} m`;
}

export function between(from: string | null, to: string | null): number | null {
  return from === null || to === null ? null : instant(to) - instant(from);
}

/** Milliseconds with the microseconds that a Date drops. */
export function instant(text: string): number {
  const whole = Math.floor(Date.parse(text) / 1000) * 1000;
  const fraction = /\.(\d+)/.exec(text)?.[1];
  return whole + (fraction ? Number(`0.${fraction}`) * 1000 : 0);
}
