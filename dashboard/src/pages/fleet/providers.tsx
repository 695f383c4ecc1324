import { get } from "../../api/client";
import type { Provider } from "../../api/fleet";
import { count } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Part } from "../../parts/part";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";

const ANEW_MS = 15_000;
const STATES: Record<string, string> = { ok: "good", failing: "bad", refused: "bad", paused: "wait", unknown: "faint" };

/** The companies that the service has credentials for, and what is wrong with them, in words. */
export function Providers() {
  const reading = useReading("providers", (signal) => get<{ providers: Provider[] }>("v1/providers", { signal }), ANEW_MS);
  return (
    <Part title="Providers" reading={reading}>
      {({ providers }) => (providers.length ? <Table providers={providers} /> : <Empty title="No provider is set up."><p><Command text="allpass doctor" /></p></Empty>)}
    </Part>
  );
}

function Table({ providers }: { providers: readonly Provider[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Providers, one by one">
      <table>
        <thead><tr><th>Provider</th><th>State</th><th>What is wrong</th><th>Answered last</th><th class="number">Machines</th><th class="number">Offers</th><th>Price list</th></tr></thead>
        <tbody>
          {providers.map((one) => (
            <tr key={one.name}>
              <td>{one.name}</td><td class={STATES[one.state] ?? ""}>{one.state}</td><td>{one.why ?? ""}</td><td><Time at={one.last_success_at} /></td>
              <td class="number">{count(one.machines)}</td><td class="number">{count(one.offers)}</td><td>{one.price_list ? `of ${one.price_list.as_of}` : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
