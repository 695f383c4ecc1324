/** What a plan's options say, in words and as lengths of bars. Pure. */

import type { TierName } from "../../api/jobs";
import { plural } from "../../format";
import type { MemoryRange, PlanLayout, PlanMachines, PlanOffer, PlanOption } from "./shapes";

/** The best of each tier: the service has them in that order. */
export function bestOf(offers: readonly PlanOffer[], tier: TierName): PlanOffer | null {
  return offers.find((one) => one.tier === tier) ?? null;
}

export interface Bar {
  capacity: number; // all in percent of the bar's width
  expected: number;
  low: number;
  high: number;
}

const BEYOND = 1.6; // so many times the capacity is drawn at most

/** The bar is as long as the larger of what there is and what may be needed. */
export function barOf(need: MemoryRange, capacity: number): Bar {
  const whole = Math.min(Math.max(capacity, need.high), capacity * BEYOND);
  const part = (bytes: number) => Math.min(100, Math.max(0, (100 * bytes) / whole));
  return { capacity: part(capacity), expected: part(need.expected), low: part(need.low), high: part(need.high) };
}

/** "2 x 8 sequences x 2 micro-batches, zero2, activations recomputed". */
export function layoutInWords(layout: PlanLayout): string {
  const parts = [`${layout.replicas} × ${plural(layout.micro_batch, "sequence")} × ${plural(layout.accumulation, "micro-batch", "micro-batches")}`];
  if (layout.tensor_parallel > 1) parts.push(`split over ${layout.tensor_parallel}`);
  if (layout.sharding !== "none") parts.push(layout.sharding);
  if (layout.precision) parts.push(layout.precision);
  if (layout.checkpointing) parts.push("activations recomputed");
  return parts.join(", ");
}

export const VERDICTS: Record<PlanOption["verdict"], { kind: string; text: string }> = {
  fits: { kind: "good", text: "fits" },
  tight: { kind: "wait", text: "tight" },
  no: { kind: "bad", text: "too small" },
};

const SOURCES: Record<string, string> = { measured: "measured", scaled: "from a near one", estimate: "estimate" };

export function sourceInWords(option: Pick<PlanOption, "step_source">): string {
  return option.step_source ? SOURCES[option.step_source] ?? option.step_source : "";
}

/** "as measured there" of a network, which nobody may have measured. */
const NETWORKS: Record<PlanMachines["network"]["source"], string> = { measured: "measured there", stated: "stated", assumed: "assumed" };

export function networkInWords({ network }: Pick<PlanMachines, "network">): string {
  return `${Number((network.bits_per_s / 1e9).toPrecision(3))} Gbit/s, ${NETWORKS[network.source]}`;
}

export function siteInWords({ tier, provider, site }: Pick<PlanMachines, "tier" | "provider" | "site">): string {
  return tier === "own" && site ? `pool ${site}` : `${provider} ${site}`.trim();
}

const MOST_SWITCHES = 8;

/** "4 under leaf-1 in r1, 2 under leaf-2"; empty where nobody says under which they are. */
export function switchesInWords(switches: PlanMachines["switches"]): string {
  const named = switches.slice(0, MOST_SWITCHES).map((one) => `${one.machines} under ${one.switch || "one that nobody says"}${one.rack && ` in ${one.rack}`}`);
  const rest = switches.slice(MOST_SWITCHES);
  if (rest.length) named.push(`${rest.reduce((sum, one) => sum + one.machines, 0)} under ${rest.length} others`);
  return named.join(", ");
}

/** 8.03 billion parameters are "8.0 B". */
export function size(parameters: number): string {
  if (parameters >= 1e9) return `${(parameters / 1e9).toFixed(parameters < 1e10 ? 1 : 0)} B`;
  return parameters >= 1e6 ? `${Math.round(parameters / 1e6)} M` : String(parameters);
}

/** The first are those that hold the job; the others are too small. Each with its place in the plan. */
export function parted(options: readonly PlanOption[]): { hold: [PlanOption, number][]; small: [PlanOption, number][] } {
  const all = options.map((option, at): [PlanOption, number] => [option, at]);
  return { hold: all.filter(([one]) => one.verdict !== "no"), small: all.filter(([one]) => one.verdict === "no") };
}
