import { plural } from "../../format";
import { Time } from "../../parts/time";
import { href } from "../../route";
import { Folded } from "./folded";
import { Mark } from "./mark";
import { PriceListView } from "./price-list";
import type { ImageBuild, Provider } from "./shapes";

export function ProviderCard({ provider }: { provider: Provider }) {
  const { name, state, why, price_list } = provider;
  return (
    <li class="provider">
      <header>
        <h2>{name}</h2>
        <Mark word={state} />
        <span class="faint">
          <a href={href("fleet", null, null, { provider: name })}>{plural(provider.machines, "machine")}</a>, <a href={href("fleet", "market", null, { provider: name })}>{plural(provider.offers, "offer")}</a>
        </span>
      </header>
      {why && <p class={state === "paused" ? "wait" : state === "ok" || state === "unknown" ? "faint" : "bad"}>{why}</p>}
      <Facts provider={provider} />
      {price_list && <PriceListView provider={name} list={price_list} />}
      {provider.images.length > 0 && <Images images={provider.images} />}
      {provider.barred_hosts.length > 0 && <Barred hosts={provider.barred_hosts} />}
    </li>
  );
}

function Facts({ provider: { last_success_at, last_failure, quota_errors, refused_at, paused_until } }: { provider: Provider }) {
  return (
    <dl class="facts">
      <dt>Last answer</dt><dd><Time at={last_success_at} /></dd>
      <dt>Last failure</dt>
      <dd>{last_failure ? <><Time at={last_failure.at} />, <code>{last_failure.call}</code>: {last_failure.message} <span class="faint">({last_failure.code})</span></> : "none"}</dd>
      {refused_at && <><dt>Refused</dt><dd class="bad"><Time at={refused_at} />: nothing is rented there until a check succeeds</dd></>}
      {paused_until && <><dt>Paused until</dt><dd><Time at={paused_until} /></dd></>}
      {quota_errors > 0 && <><dt>Account's limit</dt><dd>was in the way {quota_errors === 1 ? "once" : `${quota_errors} times`}</dd></>}
    </dl>
  );
}

function Images({ images }: { images: readonly ImageBuild[] }) {
  const failed = images.filter((one) => one.state === "failed").length;
  return (
    <Folded title={`${plural(images.length, "image")}${failed ? `, ${failed} failed` : ""}`} kind={failed ? "bad" : undefined}>
      <div class="scroll" tabIndex={0} role="group" aria-label="Of this provider">
        <table class="tabled">
          <thead><tr><th scope="col">Image</th><th scope="col">State</th><th scope="col">Since</th><th scope="col">What is wrong</th></tr></thead>
          <tbody>
            {images.map((one) => (
              <tr key={one.image}>
                <td class="mono">{one.image}</td><td><Mark word={one.state} /></td><td class="whole"><Time at={one.since} /></td>
                <td>{one.why ?? "–"}{one.log && <details><summary>The builder's last lines</summary><pre>{one.log}</pre></details>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Folded>
  );
}

function Barred({ hosts }: { hosts: Provider["barred_hosts"] }) {
  return (
    <Folded title={`${plural(hosts.length, "host")} passed over since they failed`}>
      <div class="scroll" tabIndex={0} role="group" aria-label="Of this provider">
        <table class="tabled">
          <thead><tr><th scope="col">Host</th><th scope="col" class="number">Failures</th><th scope="col">Until</th></tr></thead>
          <tbody>{hosts.map((one) => <tr key={one.host}><td class="mono">{one.host}</td><td class="number">{one.failures}</td><td class="whole"><Time at={one.until} /></td></tr>)}</tbody>
        </table>
      </div>
    </Folded>
  );
}
