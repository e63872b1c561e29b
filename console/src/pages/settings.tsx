// Keys: make one, shown once, and revoke it. Settings: every one with where it came from.
import { useState } from "preact/hooks";
import { post, remove, signIn } from "../api";
import { useData } from "../data";
import { t } from "../i18n";
import { Head, Load, Problem, Search, Section, State, Time } from "../parts/basics";
import { confirm, tell } from "../parts/dialog";
import { change, place } from "../route";

interface Key {
  id: string;
  name: string;
  scopes: string[];
  created_at: string;
  last_used_at: string | null;
  revoked_at: string | null;
}

interface Setting {
  name: string;
  value: string;
  origin: string;
}

const SURFACES = ["*", "tasks", "queue", "governance", "nodes"];
const LEVELS = ["read", "write", "admin"];

function NewKey({ isFirst, reload }: { isFirst: boolean; reload: () => void }) {
  const [name, setName] = useState("");
  const [surface, setSurface] = useState("*");
  const [level, setLevel] = useState(isFirst ? "admin" : "read");
  const [made, setMade] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  async function make(event: Event) {
    event.preventDefault();
    setError(null);
    try {
      const key = await post<{ key: string }>("api/v1/keys", { name, scopes: [`${surface}:${level}`] });
      setMade(key.key);
      setName("");
      // From the first key on every call needs one: go on with it.
      if (isFirst) await signIn(key.key);
      reload();
    } catch (failure) {
      setError(failure as Error);
    }
  }
  return (
    <>
      <form class="filters" onSubmit={(event) => void make(event)}>
        <input aria-label={t("keys.name")} placeholder={t("keys.name")} required maxLength={128} value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <select aria-label={t("letters.surface")} value={surface} onChange={(event) => setSurface(event.currentTarget.value)}>{SURFACES.map((code) => <option key={code} value={code}>{code === "*" ? t("letters.any_surface") : code}</option>)}</select>
        <select aria-label={t("keys.level")} value={level} onChange={(event) => setLevel(event.currentTarget.value)}>{LEVELS.map((code) => <option key={code}>{code}</option>)}</select>
        <button class="primary">{t("keys.make")}</button>
      </form>
      {isFirst && <p class="muted">{t("keys.first")}</p>}
      <Problem error={error} />
      {made && <p class="once" role="status">{t("keys.once")} <code>{made}</code> <button type="button" class="plain" onClick={() => void navigator.clipboard?.writeText(made)}>{t("keys.copy")}</button> <button type="button" class="plain" onClick={() => setMade(null)}>{t("close")}</button></p>}
    </>
  );
}

function Keys() {
  const keys = useData<{ keys: Key[] }>("api/v1/keys", { follows: ["KEY"] });
  function revoke(key: Key) {
    confirm({ text: t("keys.revoke_sure", { name: key.name }), verb: t("keys.revoke"), does: async () => { await remove(`api/v1/keys/${key.id}`); tell(t("keys.revoked", { name: key.name })); keys.reload(); } });
  }
  return (
    <Section title={t("keys.title")}>
      <Load from={keys}>
        {(found) => (
          <>
            <NewKey isFirst={found.keys.length === 0} reload={keys.reload} />
            {found.keys.length > 0 && (
              <table>
                <thead><tr><th>{t("keys.name")}</th><th class="wide">{t("keys.id")}</th><th>{t("keys.scopes")}</th><th class="wide right">{t("keys.made")}</th><th class="wide right">{t("keys.used")}</th><th>{t("queue.state")}</th><th /></tr></thead>
                <tbody>{found.keys.map((key) => <tr key={key.id}><td>{key.name}</td><td class="wide mono">{key.id}</td><td class="mono">{key.scopes.join(" ")}</td><td class="wide right"><Time at={key.created_at} /></td><td class="wide right"><Time at={key.last_used_at} /></td><td><State of={key.revoked_at ? "revoked" : "live"} /></td><td class="right">{!key.revoked_at && <button type="button" onClick={() => revoke(key)}>{t("keys.revoke")}</button>}</td></tr>)}</tbody>
              </table>
            )}
          </>
        )}
      </Load>
    </Section>
  );
}

function Settings() {
  const settings = useData<{ settings: Setting[] }>("api/v1/settings");
  const wanted = (place.value.values["name"] ?? "").toLowerCase();
  return (
    <Section title={t("settings.title")}>
      <div class="filters"><Search label={t("settings.search")} value={place.value.values["name"] ?? ""} onInput={(name) => change({ name }, false)} /></div>
      <Load from={settings}>
        {(found) => (
          <table>
            <thead><tr><th>{t("settings.name")}</th><th>{t("settings.value")}</th><th>{t("settings.origin")}</th></tr></thead>
            <tbody>{found.settings.filter((one) => one.name.includes(wanted)).map((one) => <tr key={one.name} class={one.origin.startsWith("default") ? "quiet" : ""}><td class="mono">{one.name}</td><td class="mono clip" title={one.value}>{one.value}</td><td>{one.origin === "default" ? t("settings.default") : one.origin}</td></tr>)}</tbody>
          </table>
        )}
      </Load>
    </Section>
  );
}

export function SettingsPage() {
  return (
    <>
      <Head title={t("nav.settings")} />
      <Keys />
      <Settings />
    </>
  );
}
