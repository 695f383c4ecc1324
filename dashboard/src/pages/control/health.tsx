import { plural } from "../../format";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { readHealth } from "./readiness";

const ANEW_MS = 5_000;
const NAMES: Record<string, string> = { api: "API", database: "Database", objects: "Object store", control: "Control loop" };

/** The service's parts, each with its state; and what is amiss, in the service's words. */
export function HealthView() {
  const { value, error } = useReading("health", readHealth, ANEW_MS);
  return (
    <section class="health" aria-label="Parts of the service">
      <ul class="parts">
        {value
          ? Object.entries(value.parts).map(([name, state]) => <Part key={name} name={NAMES[name] ?? name} state={state} />)
          : <li class={error ? "bad" : "faint"} role="status">{error ? error.message : "Asking the parts of the service …"}</li>}
        {value && <li class="faint">version {value.version}</li>}
        {value && error && <li class="bad">Not up to date: {error.message}</li>}
      </ul>
      {value && value.degraded.length > 0 && (
        <ul class="notes">
          {value.degraded.map((one) => (
            <li key={one.part}><b>{one.part}</b>: {one.what} <span class="faint">since <Time at={one.since} />{one.failures > 0 && `, ${plural(one.failures, "failure")}`}</span></li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Part({ name, state }: { name: string; state: string }) {
  const kind = state === "ok" ? "good" : state === "unknown" || state === "degraded" ? "wait" : "bad";
  return <li><span class={`status ${kind}`}>{name}</span> <span class={state === "ok" ? "faint" : kind}>{state}</span></li>;
}
