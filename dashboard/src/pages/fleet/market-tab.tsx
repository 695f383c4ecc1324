/** What could be rented now, and what it costs per GPU. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { all, get } from "../../api/client";
import { TIERS, tierColumns } from "../../api/jobs";
import { count, money, plural } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { Tier } from "../../parts/place";
import { useReading, type Reading } from "../../parts/reading";
import { route, setQuery } from "../../route";
import { askedOffers, datesOf, microsOf, offerFilters, offersCommand, priceTable, type OfferFilters, type PriceRow } from "./market";
import { Choice } from "./node-filters";
import { OfferTable } from "./offer-table";
import type { Offer, Provider } from "./shapes";

const ANEW_MS = 60_000;
const MOST = 2_000;
const PAUSE_MS = 400; // between the last key and the question

export function MarketTab() {
  const query = route.value.query.toString();
  const filters = useMemo(() => offerFilters(new URLSearchParams(query)), [query]);
  const asked = askedOffers(filters);
  const key = JSON.stringify(asked);
  const providers = useReading("providers", (signal) => get<{ providers: Provider[] }>("v1/providers", { signal }), ANEW_MS);
  const offers = useReading(`offers ${key}`, (signal) => all<Offer>("v1/offers", { query: { ...asked, limit: 1000 }, signal }, MOST), ANEW_MS);
  const prices = useMemo(() => (providers.value ? priceTable(providers.value.providers) : null), [providers.value]);
  return (
    <>
      <section aria-labelledby="lowest">
        <h2 id="lowest">Lowest price of a GPU, per hour</h2>
        <Prices reading={providers} prices={prices} filters={filters} />
      </section>
      <section aria-labelledby="offers">
        <h2 id="offers">Offers</h2>
        <OfferFilterBar filters={filters} gpus={prices?.map((row) => row.gpu) ?? []} providers={providers.value?.providers.map((one) => one.name) ?? []} />
        <Offers reading={offers} filters={filters} />
      </section>
    </>
  );
}

function Prices({ reading, prices, filters }: { reading: Reading<unknown>; prices: PriceRow[] | null; filters: OfferFilters }) {
  if (!prices) return reading.error ? <Failure error={reading.error} again={reading.again} /> : <Loading what="Reading the prices" />;
  if (!prices.length) return <Empty title="No provider offers anything now." />;
  const tiers = tierColumns(prices.some((row) => row.cells.own !== null));
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Lowest prices">
      <table class="tabled prices">
        <caption>Press a price to see its offers.</caption>
        <thead><tr><th scope="col">GPU</th>{tiers.map((tier) => <th key={tier} scope="col" class="number"><Tier tier={tier} /></th>)}</tr></thead>
        <tbody>
          {prices.map((row) => (
            <tr key={row.gpu}>
              <th scope="row">{row.gpu}</th>
              {tiers.map((tier) => <td key={tier} class="number"><PriceCell row={row} tier={tier} chosen={filters.gpu === row.gpu && filters.tier === tier} /></td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function PriceCell({ row, tier, chosen }: { row: PriceRow; tier: keyof PriceRow["cells"]; chosen: boolean }) {
  const cell = row.cells[tier];
  if (!cell) return <span class="faint">–</span>;
  const lowest = cell.lowest === row.lowest;
  const choose = () => setQuery(chosen ? { gpu: null, tier: null } : { gpu: row.gpu, tier, provider: null, max: null }, { replace: false });
  return (
    <button type="button" class={`price-cell ${lowest ? "lowest" : ""}`} aria-pressed={chosen} onClick={choose}
      title={`${plural(cell.offers, "offer")} at ${cell.providers.join(", ")}`}>{money(cell.lowest)}</button>
  );
}

function OfferFilterBar({ filters, gpus, providers }: { filters: OfferFilters; gpus: readonly string[]; providers: readonly string[] }) {
  return (
    <div class="filters" role="search" aria-label="Offers">
      <div class="filters-row">
        <Choice name="gpu" label="GPU" value={filters.gpu} options={withChosen(gpus, filters.gpu)} none="every GPU" />
        <Choice name="tier" label="Tier" value={filters.tier} options={TIERS} none="every tier" />
        <Choice name="provider" label="Provider" value={filters.provider} options={withChosen(providers, filters.provider)} none="every provider" />
        <MostField value={filters.most} />
        <Command text={offersCommand(filters)} />
      </div>
    </div>
  );
}

function withChosen(options: readonly string[], chosen: string | null): string[] {
  return [...new Set(chosen ? [...options, chosen] : options)].sort();
}

function MostField({ value }: { value: string }) {
  const [text, setText] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (now: string) => {
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ max: now.trim() || null }), PAUSE_MS);
  };
  const wrong = text.trim() !== "" && microsOf(text) === null;
  return (
    <input class="most-field" inputMode="decimal" size={14} aria-label="Most dollars per GPU and hour" aria-invalid={wrong} title={wrong ? "Dollars, as in 1.20" : undefined}
      placeholder="most $ per GPU" value={text} onInput={(event) => typed(event.currentTarget.value)} />
  );
}

function Offers({ reading: { value, error, again }, filters }: { reading: Reading<Offer[]>; filters: OfferFilters }) {
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading the offers" />;
  const narrowed = Object.values(askedOffers(filters)).some((one) => one !== null);
  if (!value.length) return narrowed ? <NoneFits /> : <Empty title="Nothing is on offer now"><p>Whether the providers answer stands under Providers.</p></Empty>;
  return (
    <>
      <p class="fleet-line" role="status">
        <span class={error ? "wait" : "faint"}>{error ? `Not up to date: ${error.message}` : `${value.length >= MOST ? `the cheapest ${count(value.length)} offers` : plural(value.length, "offer")}, the cheapest per GPU first`}</span>
      </p>
      {datesOf(value).map((one) => (
        <p key={one.provider} class={`small-text ${one.old ? "wait" : "faint"}`}>{one.provider} tells no prices: these are of a list of {one.as_of}{one.old && ", more than 180 days ago"}.</p>
      ))}
      <OfferTable key={offersCommand(filters)} offers={value} />
    </>
  );
}

function NoneFits() {
  const clear = () => setQuery({ gpu: null, tier: null, provider: null, max: null }, { replace: false });
  return <Empty title="No offer fits these filters."><p><button type="button" onClick={clear}>Show all offers</button></p></Empty>;
}
