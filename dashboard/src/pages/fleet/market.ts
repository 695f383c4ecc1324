/** Which offers one looks at, and the lowest price of each type of GPU in each tier. Pure. */

import { TIERS, type TierName } from "../../api/jobs";
import type { Offer, Provider, ProviderPrices } from "./shapes";

export interface OfferFilters {
  gpu: string | null;
  tier: string | null;
  provider: string | null;
  most: string; // dollars per GPU and hour, as typed
}

export function offerFilters(query: URLSearchParams): OfferFilters {
  return { gpu: query.get("gpu"), tier: query.get("tier"), provider: query.get("provider"), most: query.get("max") ?? "" };
}

/** Dollars as typed, in micro-dollars; null where they are none. */
export function microsOf(text: string): number | null {
  const clean = text.trim().replace(/^\$/, "");
  return /^\d{1,6}(\.\d+)?$/.test(clean) ? Math.round(Number(clean) * 1e6) : null;
}

/** As the service is asked. A tier that there is not would be refused. */
export function askedOffers({ gpu, tier, provider, most }: OfferFilters): Record<string, string | number | null> {
  const known = TIERS.includes(tier as TierName) ? tier : null;
  return { gpu_type: gpu, tier: known, provider, max_price: microsOf(most) };
}

export function offersCommand(filters: OfferFilters): string {
  const { gpu_type, tier, provider, max_price } = askedOffers(filters);
  const options = [["--gpu", gpu_type], ["--tier", tier], ["--provider", provider], ["--max-price", max_price && max_price === microsOf(filters.most) ? Number(max_price) / 1e6 : null]];
  return `allpass offers${options.filter(([, value]) => value !== null).map(([name, value]) => ` ${name} ${quoted(String(value))}`).join("")}`;
}

/** For a shell: names of GPUs and providers are seldom more than words. */
export function quoted(text: string): string {
  return /^[\w.:/+=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

export interface PriceRow {
  gpu: string;
  cells: Record<TierName, { lowest: number; offers: number; providers: string[] } | null>;
  lowest: number;
}

/** What a GPU of each type costs at least, tier by tier; the cheapest types first. */
export function priceTable(providers: readonly Pick<Provider, "name" | "prices">[]): PriceRow[] {
  const rows = new Map<string, PriceRow>();
  for (const { name, prices } of providers) {
    for (const price of prices) {
      const row = rows.get(price.gpu_type) ?? { gpu: price.gpu_type, cells: { own: null, serverless: null, marketplace: null, conventional: null }, lowest: Infinity };
      rows.set(price.gpu_type, row);
      row.cells[price.tier] = together(row.cells[price.tier], price, name);
      row.lowest = Math.min(row.lowest, price.lowest);
    }
  }
  return [...rows.values()].sort((a, b) => a.lowest - b.lowest || a.gpu.localeCompare(b.gpu));
}

function together(cell: PriceRow["cells"][TierName], price: ProviderPrices, name: string): PriceRow["cells"][TierName] {
  if (!cell) return { lowest: price.lowest, offers: price.offers, providers: [name] };
  return { lowest: Math.min(cell.lowest, price.lowest), offers: cell.offers + price.offers, providers: [...cell.providers, name] };
}

/** Days of prices that nobody tells with every listing: one for each provider among the offers. */
export function datesOf(offers: readonly Offer[]): { provider: string; as_of: string; old: boolean }[] {
  const found = new Map<string, { provider: string; as_of: string; old: boolean }>();
  for (const { provider, price_as_of, price_is_old } of offers) {
    if (price_as_of === null) continue;
    const known = found.get(provider);
    if (!known || price_as_of < known.as_of) found.set(provider, { provider, as_of: price_as_of, old: price_is_old || Boolean(known?.old) });
  }
  return [...found.values()];
}
