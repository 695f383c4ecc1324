import { describe, expect, it } from "vitest";

import { tierColumns } from "../../api/jobs";
import { askedOffers, datesOf, microsOf, offerFilters, offersCommand, priceTable, quoted } from "./market";
import type { Offer } from "./shapes";

const filters = (query: string) => offerFilters(new URLSearchParams(query));

describe("filters of offers", () => {
  it("are asked as the service knows them", () => {
    expect(askedOffers(filters("gpu=A100&tier=marketplace&max=1.20"))).toEqual({ gpu_type: "A100", tier: "marketplace", provider: null, max_price: 1_200_000 });
    expect(askedOffers(filters("tier=none&max=abc"))).toEqual({ gpu_type: null, tier: null, provider: null, max_price: null });
  });
  it("are a command", () => {
    expect(offersCommand(filters(""))).toBe("allpass offers");
    expect(offersCommand(filters("gpu=RTX 4090&max=$1.2&provider=vast"))).toBe("allpass offers --gpu 'RTX 4090' --provider vast --max-price 1.2");
  });
});

it("reads dollars", () => expect(["1", " $0.25", "", "-1", "1e9", "1.", "12345678"].map(microsOf)).toEqual([1_000_000, 250_000, null, null, null, null, null]));

it("quotes for a shell what needs it", () => expect([quoted("A100-80GB"), quoted("a b"), quoted("it's")]).toEqual(["A100-80GB", "'a b'", `'it'\\''s'`]));

it("has the lowest price of each GPU in each tier, the cheapest GPU first", () => {
  const table = priceTable([
    { name: "modal", prices: [{ tier: "serverless", gpu_type: "A100", offers: 1, lowest: 2_000_000, highest: 2_000_000 }] },
    { name: "vast", prices: [{ tier: "marketplace", gpu_type: "A100", offers: 9, lowest: 700_000, highest: 1_000_000 }, { tier: "marketplace", gpu_type: "RTX4090", offers: 3, lowest: 300_000, highest: 400_000 }] },
    { name: "other", prices: [{ tier: "marketplace", gpu_type: "A100", offers: 2, lowest: 600_000, highest: 1_000_000 }] },
  ]);
  expect(table.map((row) => [row.gpu, row.lowest])).toEqual([["RTX4090", 300_000], ["A100", 600_000]]);
  expect(table[1]!.cells.marketplace).toEqual({ lowest: 600_000, offers: 11, providers: ["vast", "other"] });
  expect(table[1]!.cells.conventional).toBeNull();
});

it("has a team's own GPUs among them, and a column for those only where there are any", () => {
  const [row] = priceTable([{ name: "joined", prices: [{ tier: "own", gpu_type: "A100", offers: 2, lowest: 0, highest: 0 }] }]);
  expect([row!.lowest, row!.cells.own?.offers]).toEqual([0, 2]);
  expect([tierColumns(true)[0], tierColumns(false)[0]]).toEqual(["own", "serverless"]);
});

it("tells the earliest day of each provider's prices", () => {
  const offer = (provider: string, price_as_of: string | null, price_is_old = false) => ({ provider, price_as_of, price_is_old }) as Offer;
  expect(datesOf([offer("modal", "2026-05-01"), offer("modal", "2026-01-01", true), offer("vast", null)])).toEqual([{ provider: "modal", as_of: "2026-01-01", old: true }]);
});
