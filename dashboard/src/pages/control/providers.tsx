import { get } from "../../api/client";
import { count, hourly, plural } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";

export interface Provider {
  name: string;
  state: "ok" | "failing" | "paused" | "refused" | "unknown";
  why: string | null;
  last_success_at: string | null;
  last_failure: { call: string; code: string; message: string; at: string } | null;
  quota_errors: number;
  refused_at: string | null;
  paused_until: string | null;
  machines: number;
  offers: number;
  prices: { tier: string; gpu_type: string; offers: number; lowest: number; highest: number }[];
  barred_hosts: { host: string; failures: number; until: string }[];
}

const ANEW_MS = 10_000;
const KINDS: Record<string, string> = { ok: "good", failing: "bad", refused: "bad", paused: "wait", unknown: "over" };

/** The companies that machines are rented from, and what is wrong with them, in words. */
export function ProvidersView() {
  const { value, error, again } = useReading("providers", (signal) => get<{ providers: Provider[] }>("v1/providers", { signal }), ANEW_MS);
  return (
    <section aria-label="Providers">
      <div class="section-title"><h2>Providers</h2><Command text="allpass providers" /></div>
      {value && error && <p class="bad" role="status">Not up to date: {error.message}</p>}
      {!value && (error ? <Failure error={error} again={again} /> : <Loading what="Reading the providers" />)}
      {value && (value.providers.length ? <Table list={value.providers} /> : <NoProviders />)}
    </section>
  );
}

function NoProviders() {
  return (
    <Empty title="No provider is configured.">
      <p>Without one, nothing can be rented and every job waits. The service takes its credentials from its settings; <code>allpass doctor</code> says what is missing.</p>
    </Empty>
  );
}

function Table({ list }: { list: readonly Provider[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Providers">
      <table class="provider-table">
        <thead><tr><th>Provider</th><th>State</th><th class="number">Machines</th><th class="number">Offers</th><th class="number">Cheapest GPU</th><th class="number">Last answer</th><th>Last failure</th></tr></thead>
        <tbody>{list.map((one) => <Row key={one.name} provider={one} />)}</tbody>
      </table>
    </div>
  );
}

function Row({ provider }: { provider: Provider }) {
  const failure = provider.last_failure;
  const cheapest = cheapestOf(provider);
  return (
    <tr>
      <th scope="row">{provider.name}</th>
      <td><span class={`status ${KINDS[provider.state] ?? "over"}`}>{provider.state}</span> <Why provider={provider} /></td>
      <td class="number">{count(provider.machines)}</td>
      <td class="number">{count(provider.offers)}</td>
      <td class="number">{cheapest ? <>{cheapest.gpu_type} {hourly(cheapest.lowest)}</> : "–"}</td>
      <td class="number"><Time at={provider.last_success_at} /></td>
      <td class="provider-why">{failure
        ? <><span class="two-lines" title={failure.message}>{failure.message}</span> <small class="faint">{failure.call}, {failure.code}, <Time at={failure.at} /></small></>
        : <span class="faint">none</span>}</td>
    </tr>
  );
}

function Why({ provider }: { provider: Provider }) {
  const { why, paused_until, barred_hosts } = provider;
  return (
    <>
      {why && <span class="provider-why">{why}</span>}
      {paused_until && <span class="faint provider-why">It goes on <Time at={paused_until} />.</span>}
      {barred_hosts.length > 0 && (
        <span class="faint provider-why" title={barred_hosts.map((one) => `${one.host}: ${plural(one.failures, "failure")}`).join("\n")}>{plural(barred_hosts.length, "host")} barred</span>
      )}
    </>
  );
}

export function cheapestOf({ prices }: Pick<Provider, "prices">): Provider["prices"][number] | null {
  return prices.reduce<Provider["prices"][number] | null>((low, one) => (low === null || one.lowest < low.lowest ? one : low), null);
}
