/** Lines of usage, gathered by what they are of. Pure. */

import type { Usage, UsageLine } from "../../api/costs";

export interface Group {
  key: string | null;
  name: string;
  cost: number;
  gpuMs: number;
  byPayer: Readonly<Record<string, number>>; // run, boot, idle, orphan
}

/** The most expensive first. */
export function groupsOf(lines: readonly UsageLine[]): Group[] {
  const found = new Map<string | null, Group>();
  for (const line of lines) {
    const before = found.get(line.key) ?? { key: line.key, name: line.name ?? line.key ?? "without", cost: 0, gpuMs: 0, byPayer: {} };
    const byPayer = { ...before.byPayer, [line.payer]: (before.byPayer[line.payer] ?? 0) + line.cost };
    found.set(line.key, { ...before, cost: before.cost + line.cost, gpuMs: before.gpuMs + line.gpu_ms, byPayer });
  }
  return [...found.values()].sort((a, b) => b.cost - a.cost || (a.name < b.name ? -1 : 1));
}

/** Days of a month as points, those without cost as zero, in seconds. `until`: the last day that is shown. */
export function daysOf(lines: readonly UsageLine[], from: Date, until: Date): [number, number][] {
  const costs = new Map(groupsOf(lines).map((group) => [group.key, group.cost]));
  const points: [number, number][] = [];
  for (let at = +from; at <= +until; at += 86_400_000) {
    points.push([at / 1000, (costs.get(new Date(at).toISOString().slice(0, 10)) ?? 0) / 1e6]);
  }
  return points;
}

/** What the month comes to if its days go on as they did: cost so far, by the share of the month that is over. */
export function forecast(usage: Usage, begin: Date, now: Date, end: Date): number {
  const share = (+now - +begin) / (+end - +begin);
  return share > 0 ? usage.cost / Math.min(1, share) : usage.cost;
}

/** The first instants of this month and of the next, in UTC, as the ledger counts. */
export function monthOf(now: Date): { begin: Date; end: Date } {
  const [year, month] = [now.getUTCFullYear(), now.getUTCMonth()];
  return { begin: new Date(Date.UTC(year, month, 1)), end: new Date(Date.UTC(year, month + 1, 1)) };
}
