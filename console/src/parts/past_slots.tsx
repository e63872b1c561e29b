// Past slots of a task, fired on purpose: a range, or what passed while it was disabled. What would happen is shown before it does.
import { useState } from "preact/hooks";
import { get, patch, post, query, remove } from "../api";
import { t } from "../i18n";
import type { Task } from "../shapes";
import { exact, ownZone } from "../time";
import { Act, Clock, Section, Time, nameOf } from "./basics";
import { confirm, tell } from "./dialog";

interface Filled {
  in_range: number;
  recorded: number;
  fires: number;
  first: string | null;
  last: string | null;
  slots: { slot: string; starts_at: string }[];
  ends_at: string | null;
  next_from: string | null;
}

const DAY = 86_400_000;
const number = (value: number) => value.toLocaleString("en-US");
const local = (at: number) => exact(new Date(at).toISOString()).slice(0, 16).replace(" ", "T");

function Bill({ of: filled }: { of: Filled }) {
  return (
    <>
      <p>{t("past.bill", { fires: number(filled.fires), range: number(filled.in_range), recorded: number(filled.recorded) })} {filled.ends_at && filled.fires > 0 && t("past.ends", { at: exact(filled.ends_at) })} {filled.next_from && t("past.more")}</p>
      {filled.slots.length > 0 && (
        <ol class="timeline">
          {filled.slots.slice(0, 5).map(({ slot, starts_at }) => <li key={slot}><Clock at={slot} /><span class="muted">{t("past.starts")} <Time at={starts_at} /></span></li>)}
          {filled.fires > 5 && <li><span /> <span class="muted">… {filled.last && exact(filled.last)}</span></li>}
        </ol>
      )}
    </>
  );
}

export function PastSlots({ task, reload }: { task: Task; reload: () => void }) {
  const [from, setFrom] = useState(local(Date.now() - DAY));
  const [to, setTo] = useState(local(Date.now()));
  const [count, setCount] = useState("100");
  const [age, setAge] = useState("");
  const [pace, setPace] = useState("60");
  const [filled, setFilled] = useState<Filled | null>(null);
  const isOff = task.status === "DISABLED";
  const path = `api/v1/tasks/${task.id}`;
  const caps = { max_age: age.trim() || null, per_minute: Number(pace) || 60 };
  const many = Math.min(1000, Math.max(1, Number(count) || 1));
  const range = () => ({ ...caps, limit: many, from: new Date(from).toISOString(), to: new Date(to).toISOString() });
  const edited = (set: (text: string) => void) => (event: { currentTarget: HTMLInputElement }) => { set(event.currentTarget.value); setFilled(null); };

  async function look() {
    setFilled(await post<Filled>(`${path}/backfill`, { ...range(), dry_run: true }));
  }
  async function stop() {
    await remove(`${path}/backfill`);
    reload();
  }
  async function fire() {
    const seen = await post<Filled>(`${path}/backfill`, { ...range(), dry_run: true });
    setFilled(seen);
    confirm({
      text: t("past.sure", { name: nameOf(task), fires: number(seen.fires) }),
      verb: t("past.fire"),
      does: async () => {
        const done = await post<Filled>(`${path}/backfill`, range());
        tell(t("past.done", { fires: number(done.fires) }), stop);
        setFilled(null);
        reload();
      },
    });
  }
  async function enable() {
    const { catch_up } = await get<{ catch_up: Filled | null }>(`${path}/resume-preview${query({ ...caps, count: many })}`);
    setFilled(catch_up);
    confirm({
      text: t("past.enable_sure", { name: nameOf(task), fires: number(catch_up?.fires ?? 0), range: number(catch_up?.in_range ?? 0) }),
      verb: t("tasks.enable"),
      does: async () => {
        await patch(`${path}/enable`, { catch_up: { ...caps, count: many } });
        tell(t("past.done", { fires: number(catch_up?.fires ?? 0) }), stop);
        setFilled(null);
        reload();
      },
    });
  }
  return (
    <Section title={t("past.title")} aside={t("past.about")}>
      <div class="filters">
        <label>{t("past.from")} <input type="datetime-local" value={from} onInput={edited(setFrom)} /></label>
        <label>{t("past.to", { zone: ownZone })} <input type="datetime-local" value={to} onInput={edited(setTo)} /></label>
        <label>{t("past.count")} <input class="short" type="number" min="1" max="1000" value={count} onInput={edited(setCount)} /></label>
        <label>{t("past.age")} <input class="short" placeholder="24h" value={age} onInput={edited(setAge)} /></label>
        <label>{t("past.pace")} <input class="short" type="number" min="1" max="6000" value={pace} onInput={edited(setPace)} /></label>
        <Act does={look}>{t("past.look")}</Act>
        <Act does={fire}>{t("past.fire")}</Act>
        {isOff && <Act does={enable}>{t("past.enable")}</Act>}
      </div>
      {filled && <Bill of={filled} />}
    </Section>
  );
}
