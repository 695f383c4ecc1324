import { money } from "../../format";
import { Command } from "../../parts/command";
import { Time } from "../../parts/time";
import { Folded } from "./folded";
import { quoted } from "./market";
import type { ListPrice, PriceList } from "./shapes";

/** Prices of a company that has no interface for them: as published, as they were set here, and which counts. */
export function PriceListView({ provider, list }: { provider: string; list: PriceList }) {
  return (
    <Folded title={titleOf(list)} kind={list.is_old ? "wait" : undefined}>
      {list.is_old && <p class="wait">Compare the old ones with what {provider} asks now: decisions and the ledger follow them.</p>}
      <div class="scroll" tabIndex={0} role="group" aria-label="Prices">
        <table class="tabled">
          <thead>
            <tr>
              <th scope="col">Name</th><th scope="col" class="number">Published, $/h</th><th scope="col" class="number">In the settings</th><th scope="col" class="number">Set by an owner</th>
              <th scope="col" class="number">In use</th><th scope="col">Of</th>
            </tr>
          </thead>
          <tbody>{list.prices.map((price) => <Row key={price.name} price={price} />)}</tbody>
        </table>
      </div>
      <p><span class="faint">To set one, with a key of scope owner: </span><Command text={`allpass providers prices ${quoted(provider)} ${quoted(list.prices[0]?.name ?? "NAME")}=DOLLARS`} /></p>
    </Folded>
  );
}

function titleOf({ as_of, oldest, is_old }: PriceList): string {
  const older = oldest !== null && (is_old || oldest !== as_of);
  return `Price list of ${as_of}${older ? `; the oldest price in use is of ${oldest}${is_old ? ", more than 180 days ago" : ""}` : ""}`;
}

function Row({ price }: { price: ListPrice }) {
  const overruled = (source: string, value: number | null) => (value !== null && price.used !== null && price.source !== source ? "number faint overruled" : "number");
  return (
    <tr>
      <th scope="row">{price.name}</th>
      <td class={overruled("list", price.published)}>{money(price.published)}</td>
      <td class={overruled("setting", price.setting)}>{money(price.setting)}</td>
      <td class={overruled("owner", price.own)} title={price.set_by ? `set by ${price.set_by}` : undefined}>{money(price.own)}{price.set_at && <span class="faint"> <Time at={price.set_at} /></span>}</td>
      <td class="number"><b>{money(price.used)}</b></td>
      <td class={price.is_old ? "wait whole" : "whole"}>{price.as_of ?? "–"}{price.is_old && ", old"}</td>
    </tr>
  );
}
