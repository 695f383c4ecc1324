/** What a job's class means for it, and when it stands by. Pure. */

import { absolute, duration, hourly, money, percent } from "../../format";

export interface PoolFacts {
  name: string;
  spot_share: number;
  grace_s: number | null;
}

export interface Standby {
  state: "leaving" | "lent" | "called_back" | "ending" | "over";
  gpus: number;
  used_gpus: number;
  until: string;
  why: string | null;
  paid: number;
  rebate: number;
  price_per_hour: number;
}

export interface StandbyWindow {
  id: string;
  days: string[];
  begins: string;
  ends: string;
  zone: string;
  next_at: string | null;
  ended_at: string | null;
}

const MOST_POOLS = 5;

export function classWords(priorityClass: string): string {
  return priorityClass === "spot"
    ? "spot: it saves and leaves when a guaranteed job needs its GPUs, and goes on elsewhere"
    : "guaranteed: it is never made to leave for another job";
}

/** Where pools have a share of the price, or a grace, of their own; of a guaranteed job nothing. */
export function poolWords(priorityClass: string, pools: readonly PoolFacts[]): string[] {
  if (priorityClass !== "spot") return [];
  const own = pools.filter((pool) => pool.spot_share < 1 || pool.grace_s !== null);
  const words = own.slice(0, MOST_POOLS).map((pool) => {
    const told = [pool.spot_share < 1 && `pays ${percent(pool.spot_share)} of the price`, pool.grace_s !== null && `has ${duration(pool.grace_s * 1000)} to save`];
    return `in pool ${pool.name} it ${told.filter(Boolean).join(" and ")}`;
  });
  return own.length > MOST_POOLS ? [...words, `and ${own.length - MOST_POOLS} more pools`] : words;
}

/** Until when it stands by, and what that costs; null: it does not. */
export function standbyWords(newest: Standby | undefined): string | null {
  if (newest === undefined || newest.state === "over") return null;
  const money_ = `${hourly(newest.price_per_hour)} is paid meanwhile, ${money(newest.paid)} so far, and ${money(newest.rebate)} is not`;
  if (newest.state === "leaving") return `its code saves; then its GPUs are lent until ${absolute(newest.until)}`;
  if (newest.state === "lent") return `until ${absolute(newest.until)}: others have ${newest.used_gpus} of its ${newest.gpus} GPUs; ${money_}`;
  if (newest.state === "ending") return `no more: ${newest.why ?? "its machine ends"}`;
  return `is called back${newest.why ? `: ${newest.why}` : ""}; others have ${newest.used_gpus} of its ${newest.gpus} GPUs; ${money_}`;
}

export function windowWords(window: StandbyWindow): string {
  const next = window.next_at ? `, next ${absolute(window.next_at)}` : "";
  return `${window.days.join(", ")} from ${window.begins} to ${window.ends}, ${window.zone}${next}`;
}
