// Sign in with an API key. It stays in this page's memory: reloading the page signs out.
import { useState } from "preact/hooks";
import { ApiError, signIn } from "../api";
import { t } from "../i18n";
import { lang } from "../prefs";
import { Problem } from "../parts/basics";

export function SignIn({ why }: { why: "needed" | "revoked" }) {
  const [text, setText] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);

  async function submit(event: Event) {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await signIn(text.trim());
    } catch (failure) {
      const wrong = failure instanceof ApiError && failure.status === 401;
      setError(wrong ? new ApiError(401, "", t("sign_in.wrong"), null) : (failure as Error));
      setBusy(false);
    }
  }
  return (
    <main class="sign-in">
      <h1>Ksana</h1>
      <p>{t(why === "revoked" ? "sign_in.revoked" : "sign_in.needed")}</p>
      <form onSubmit={(event) => void submit(event)}>
        <label>
          {t("sign_in.key")}
          <input type="password" autocomplete="off" required value={text} autofocus onInput={(event) => setText(event.currentTarget.value)} placeholder="ksana_…" />
        </label>
        <button class="primary" disabled={isBusy}>{t("sign_in.go")}</button>
        <Problem error={error} />
      </form>
      <p class="muted">{t("sign_in.memory")}</p>
      <button type="button" class="plain" onClick={() => { lang.value = lang.value === "en" ? "zh" : "en"; }}>{lang.value === "en" ? "中文" : "English"}</button>
    </main>
  );
}
