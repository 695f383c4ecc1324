/** The rental companies that the service has credentials for: whether they answer, what they ask, what went wrong. */

import { useState } from "preact/hooks";

import { get, post } from "../../api/client";
import { may } from "../../api/session";
import { announce } from "../../parts/announcer";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { ProviderCard } from "./provider-card";
import type { Answered, Provider } from "./shapes";

const ANEW_MS = 20_000;

export function ProvidersTab() {
  const { value, error, again } = useReading("providers", (signal) => get<{ providers: Provider[] }>("v1/providers", { signal }), ANEW_MS);
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading the providers" />;
  return (
    <>
      <Acts done={again} />
      {error && <p class="wait" role="status">Not up to date: {error.message}</p>}
      {value.providers.length ? <ul class="provider-list">{value.providers.map((one) => <ProviderCard key={one.name} provider={one} />)}</ul> : <None />}
    </>
  );
}

/** What can be asked of all providers together. Nothing of it rents a machine. */
function Acts({ done }: { done: () => void }) {
  const [busy, setBusy] = useState<string | null>(null);
  const [answers, setAnswers] = useState<Answered[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const act = async (what: string, work: () => Promise<Answered[]>) => {
    setBusy(what);
    setError(null);
    try {
      setAnswers(await work());
      announce(what === "check" ? "The credentials are checked" : "The providers are asked");
      done();
    } catch (failed) {
      setError(failed as Error);
    }
    setBusy(null);
  };
  const check = () => act("check", async () => (await post<{ checks: Answered[] }>("v1/providers/check")).checks);
  const refresh = () => act("refresh", async () => (await post<{ refreshes: Answered[] }>("v1/providers/refresh")).refreshes);
  const why = may("admin") ? undefined : "Needs a key with scope admin";
  return (
    <div aria-busy={busy !== null}>
      <div class="provider-acts">
        <button type="button" disabled={busy !== null || Boolean(why)} title={why} onClick={() => void check()}>{busy === "check" ? "Checking, up to 20 s …" : "Check the credentials"}</button>
        <Command text="allpass providers check" />
        <button type="button" disabled={busy !== null || Boolean(why)} title={why} onClick={() => void refresh()}>{busy === "refresh" ? "Asking, up to 20 s …" : "Ask for prices now"}</button>
        <Command text="allpass providers prices --refresh" />
        {why && <span class="faint small-text">{why}</span>}
      </div>
      {error && <p class="bad" role="alert">{error.message}</p>}
      {answers && <ul class="answered">{answers.map((one) => <li key={one.name}><b>{one.name}</b>: <span class={one.code ? "bad" : "good"}>{one.message}</span></li>)}</ul>}
    </div>
  );
}

function None() {
  return (
    <Empty title="No provider is configured">
      <p>The service has credentials for none: whoever runs it gives them to it as settings.</p>
    </Empty>
  );
}
