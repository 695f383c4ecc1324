import { get } from "../../api/client";
import type { Health } from "../../api/control";
import { Part } from "../../parts/part";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";

const ANEW_MS = 10_000;

/** The parts of the service, and those that do not do their work. */
export function Service() {
  const reading = useReading("health", (signal) => get<Health>("readyz", { signal }), ANEW_MS);
  return (
    <Part title="The service itself" reading={reading}>
      {(health) => (
        <>
          <p class={health.status === "ok" ? "good" : "bad"}>{health.status === "ok" ? "All is well." : "Something is amiss."} Version {health.version}.</p>
          <ul>
            {Object.entries(health.parts).map(([part, state]) => <li key={part}>{part.replaceAll("_", " ")}: <span class={state === "ok" ? "good" : "bad"}>{state}</span></li>)}
            {health.degraded.map((one) => <li key={one.part} class="bad">{one.part} since <Time at={one.since} />: {one.what}</li>)}
          </ul>
        </>
      )}
    </Part>
  );
}
