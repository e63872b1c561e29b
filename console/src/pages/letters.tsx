// Dead letters of all surfaces: grouped by error, replayed one by one or all of a group.
import { post, query } from "../api";
import { useData } from "../data";
import { say, t } from "../i18n";
import { Act, Choice, Empty, Head, Load, Pager, Section, State, Time } from "../parts/basics";
import { confirm, tell } from "../parts/dialog";
import { change, link, place } from "../route";
import type { Group, Letter } from "../shapes";

const SURFACES = ["tasks", "queue", "governance", "nodes"];

interface Settled {
  count: number;
  is_capped: boolean;
  refused: { id: number; message: string }[];
  next_cursor: string | null;
}

interface Unavailable {
  unavailable: { surface: string; reason: string }[];
}

/** Surfaces whose letters are missing from what is shown. */
function Missing({ of: page }: { of: Unavailable }) {
  return <>{page.unavailable.map((one) => <p key={one.surface} class="problem" role="alert">✕ {t("letters.unavailable", { surface: say("surface", one.surface), reason: one.reason })}</p>)}</>;
}

type Filter = Record<string, string>;

/** Replay or dismiss all that match, a page at a time. */
async function settleAll(verb: "replay" | "dismiss", filter: Filter): Promise<void> {
  let cursor: string | null = null;
  let done = 0;
  let refused = 0;
  do {
    const page: Settled = await post(`api/v1/dead-letters/${verb}`, { filter, ...(cursor ? { cursor } : {}) });
    done += page.count;
    refused += page.refused.length;
    cursor = page.next_cursor;
  } while (cursor !== null);
  tell(t(verb === "replay" ? "letters.replayed" : "letters.dismissed", { done, refused }));
}

async function ask(verb: "replay" | "dismiss", filter: Filter, reload: () => void): Promise<void> {
  const counted = await post<Settled>(`api/v1/dead-letters/${verb}`, { filter, dry_run: true });
  const count = `${counted.count}${counted.is_capped ? "+" : ""}`;
  confirm({
    text: t(verb === "replay" ? "letters.replay_sure" : "letters.dismiss_sure", { count }),
    verb: t(`letters.${verb}`),
    does: async () => { await settleAll(verb, filter); reload(); },
  });
}

function placeOf(letter: Letter) {
  if (letter.entity_type === "RUN") return <a class="num" href={link(["runs", letter.entity_id])}>#{letter.entity_id}</a>;
  if (letter.entity_type === "JOB") return <a class="mono" href={link(["queue", letter.entity_id])}>{letter.entity_id.slice(-12)}</a>;
  return <span class="mono" title={letter.entity_id}>{letter.entity_id.slice(-12)}</span>;
}

function Groups({ surface, chosen, reload }: { surface: string; chosen: string; reload: () => void }) {
  const groups = useData<{ groups: Group[] }>(`api/v1/dead-letters/groups${query({ surface })}`, { follows: ["RUN", "JOB", "GOV_JOB", "NODE_JOB"] });
  const both = () => { groups.reload(); reload(); };
  return (
    <Section title={t("letters.groups")}>
      <Load from={groups}>
        {(page) => page.groups.length === 0 ? <Empty title={t("letters.empty")}><p>{t("letters.empty_what")}</p></Empty> : (
          <table>
            <thead><tr><th class="right">{t("letters.count")}</th><th class="wide">{t("letters.surface")}</th><th>{t("runs.error")}</th><th class="wide right">{t("letters.first")}</th><th class="right">{t("letters.latest")}</th><th /></tr></thead>
            <tbody>
              {page.groups.map((group) => {
                const filter = { surface: group.surface, error: group.newest.error };
                return (
                  <tr key={group.surface + group.group} aria-current={chosen === group.error ? "true" : undefined}>
                    <td class="right num">{group.count}{group.is_capped && "+"}</td>
                    <td class="wide">{say("surface", group.surface)}</td>
                    <td class="error"><a href={link(["letters"], { surface: group.surface, error: group.newest.error })} title={group.newest.error}>{group.error}</a></td>
                    <td class="wide right"><Time at={group.first_at} /></td>
                    <td class="right"><Time at={group.last_at} /></td>
                    <td class="right buttons"><Act does={() => ask("replay", filter, both)}>{t("letters.replay_all")}</Act> <Act does={() => ask("dismiss", filter, both)} kind="plain">{t("letters.dismiss")}</Act></td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        )}
      </Load>
    </Section>
  );
}

function LetterRow({ letter, reload }: { letter: Letter; reload: () => void }) {
  async function replay() {
    const done = await post<Settled>("api/v1/dead-letters/replay", { ids: [letter.id] });
    const refusal = done.refused[0];
    if (refusal) throw new Error(refusal.message);
    tell(t("letters.replayed", { done: 1, refused: 0 }));
    reload();
  }
  return (
    <tr>
      <td>{placeOf(letter)}</td>
      <td class="wide">{say("surface", letter.surface)}</td>
      <td><State of={letter.status} /></td>
      <td class="wide clip" title={letter.error}>{letter.error}</td>
      <td class="right"><Time at={letter.died_at} /></td>
      <td class="right"><Act does={replay}>{t("letters.replay")}</Act></td>
    </tr>
  );
}

export function LettersPage() {
  const { values } = place.value;
  const surface = values["surface"] ?? "";
  const letters = useData<{ letters: Letter[]; next_cursor: string | null } & Unavailable>(`api/v1/dead-letters${query({ surface, error: values["error"], cursor: values["cursor"], limit: 50 })}`, { follows: ["RUN", "JOB", "GOV_JOB", "NODE_JOB"], isList: true });
  return (
    <>
      <Head title={t("nav.letters")} />
      <div class="filters">
        <Choice label={t("letters.surface")} value={surface} options={[["", t("letters.any_surface")], ...SURFACES.map((name): [string, string] => [name, say("surface", name)])]} onChange={(name) => change({ surface: name, error: null, cursor: null })} />
        {values["error"] && <button type="button" class="tag" onClick={() => change({ error: null, cursor: null })}>{values["error"]} ✕</button>}
      </div>
      {letters.data && <Missing of={letters.data} />}
      <Groups surface={surface} chosen={values["error"] ?? ""} reload={letters.reload} />
      <Load from={letters}>
        {(page) => page.letters.length === 0 ? null : (
          <Section title={t("letters.list")}>
            <table>
              <thead><tr><th>{t("letters.what")}</th><th class="wide">{t("letters.surface")}</th><th>{t("queue.state")}</th><th class="wide">{t("runs.error")}</th><th class="right">{t("letters.died")}</th><th /></tr></thead>
              <tbody>{page.letters.map((letter) => <LetterRow key={letter.id} letter={letter} reload={letters.reload} />)}</tbody>
            </table>
            <Pager cursor={values["cursor"]} next={page.next_cursor} change={change} />
          </Section>
        )}
      </Load>
    </>
  );
}
