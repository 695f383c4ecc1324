import { useState } from "preact/hooks";

import { get } from "../api/client";
import { session, signIn } from "../api/session";
import { useReading } from "../parts/reading";

interface Health {
  status: string;
  version: string;
  parts: Record<string, string>;
  degraded: { part: string; what: string }[];
}

export function SignIn() {
  const [key, setKey] = useState("");
  const [wrong, setWrong] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const state = session.value;
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await signIn(key);
    } catch (error) {
      setWrong((error as Error).message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <h1>Allpass</h1>
      <p>Fine-tuning that starts in seconds and finishes where it is cheap.</p>
      {state.kind === "out" && state.why && <p role="status">{state.why}</p>}
      <form onSubmit={submit}>
        <label for="api-key">API key</label>
        <input id="api-key" type="password" autocomplete="current-password" spellcheck={false} required value={key}
          aria-describedby="api-key-help" aria-invalid={wrong !== null} onInput={(event) => setKey(event.currentTarget.value)} />
        <p id="api-key-help" class="faint">
          Whoever runs this service makes one with <code>allpass key create NAME</code>. Where <code>allpass up</code> runs,
          it is in the file that it names.
        </p>
        {wrong && <p class="wrong" role="alert">{wrong}</p>}
        <button type="submit" disabled={busy}>Sign in</button>
      </form>
      <State />
    </main>
  );
}

function State() {
  const { value } = useReading("health", (signal) => get<Health>("readyz", { signal }), 10_000);
  if (!value) return null;
  return (
    <footer>
      <p class={value.status === "ok" ? "good" : "bad"}>
        {value.status === "ok" ? "All is well." : "Something is amiss."} Version {value.version}.
      </p>
      {value.degraded.map((one) => <p key={one.part}>{one.part}: {one.what}</p>)}
      <p><a href="docs">The REST API, to try out</a>, <a href="redoc">to read</a>, or <a href="openapi.json">as OpenAPI</a></p>
    </footer>
  );
}
