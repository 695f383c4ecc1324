/** Lines of the ledger as one looks at them: one group for each key, day by day, and what the month will come to. Pure. */

import { DAY_MS, dayOf } from "./range";
import { PAYERS, type Payer, type Usage, type UsageLine } from "./shapes";

export type Shares = Record<Payer, number>;

export interface Group {
  id: string;
  key: string | null;
  name: string;
  cost: number;
  gpu_ms: number;
  shares: Shares;
}

const NOBODY: Record<Payer, string> = { boot: "booting, for no job yet", idle: "idle machines", orphan: "machines nobody owned", run: "without this label" };

export const none = (): Shares => ({ run: 0, boot: 0, idle: 0, orphan: 0 });

/** One for each key, whoever paid; the dearest first. What belongs to nobody stays apart; `unknown`: jobs that have no key. */
export function groupsOf(lines: readonly UsageLine[], unknown = NOBODY.run): Group[] {
  const found = new Map<string, Group>();
  for (const line of lines) {
    const id = line.key === null ? `nobody ${line.payer}` : `key ${line.key}`;
    const group = found.get(id) ?? { id, key: line.key, name: line.key ?? (line.payer === "run" ? unknown : NOBODY[line.payer]), cost: 0, gpu_ms: 0, shares: none() };
    found.set(id, group);
    if (line.name) group.name = line.name;
    group.cost += line.cost;
    group.gpu_ms += line.gpu_ms;
    group.shares[line.payer] += line.cost;
  }
  return [...found.values()].sort((a, b) => b.cost - a.cost || a.name.localeCompare(b.name));
}

/** Days from the newest, numbers of GPUs from the fewest; what has none comes last. All else as it was: the dearest first. */
export function inOrder(groups: Group[], by: string): Group[] {
  if (by === "day") return groups.sort((a, b) => (b.key ?? "").localeCompare(a.key ?? ""));
  if (by === "size") return groups.sort((a, b) => gpusOf(a) - gpusOf(b));
  return groups;
}

function gpusOf({ key }: Group): number {
  const gpus = key === null ? NaN : Number(key);
  return Number.isFinite(gpus) ? gpus : Number.MAX_VALUE;
}

/** A stretch of the chart: a day, a week or a month. */
export interface Stretch {
  from: string; // its first day
  to: string; // its last one
  cost: number;
  shares: Shares;
}

const MOST_DAYS = 62;
const MOST_WEEKS_OF_DAYS = 430;

/** What each stretch cost, without gaps, from the first day to the last; weeks and months where days would be too many. */
export function stretchesOf(lines: readonly UsageLine[], from: string | null, to: string): Stretch[] {
  const days = lines.map((line) => line.key).filter((key): key is string => key !== null).sort();
  const first = from ?? days[0];
  if (first === undefined || first > to) return [];
  const span = (Date.parse(to) - Date.parse(first)) / DAY_MS + 1;
  const start = span <= MOST_DAYS ? (day: string) => day : span <= MOST_WEEKS_OF_DAYS ? mondayOf : (day: string) => `${day.slice(0, 7)}-01`;
  const found = new Map<string, Stretch>();
  for (let ms = Date.parse(first); ms <= Date.parse(to); ms += DAY_MS) {
    const day = dayOf(ms);
    const stretch = found.get(start(day));
    if (stretch) stretch.to = day;
    else found.set(start(day), { from: day, to: day, cost: 0, shares: none() });
  }
  for (const line of lines) {
    const stretch = line.key === null ? undefined : found.get(start(line.key));
    if (!stretch) continue;
    stretch.cost += line.cost;
    stretch.shares[line.payer] += line.cost;
  }
  return [...found.values()];
}

function mondayOf(day: string): string {
  const ms = Date.parse(day);
  return dayOf(ms - ((new Date(ms).getUTCDay() + 6) % 7) * DAY_MS);
}

/** A round number at or above the highest, and the lines that divide the space below it. */
export function scaleOf(most: number): { top: number; ticks: number[] } {
  if (most <= 0) return { top: 1, ticks: [] };
  const power = 10 ** Math.floor(Math.log10(most));
  const step = ([0.25, 0.5, 1, 2, 2.5, 5].find((one) => one * power * 4 >= most) ?? 5) * power;
  const count = Math.ceil(most / step);
  return { top: count * step, ticks: Array.from({ length: count }, (_, at) => (at + 1) * step) };
}

const TOO_EARLY_MS = DAY_MS / 2;

export interface Forecast {
  month: string; // "December 2026"
  daysSoFar: number;
  cost: number | null; // null: too early to tell
}

/** The month goes on as it went so far: linear, by the time that has passed of it. */
export function forecastOf(spent: number, now: number): Forecast {
  const [year, month] = [new Date(now).getUTCFullYear(), new Date(now).getUTCMonth()];
  const begin = Date.UTC(year, month, 1);
  const passed = now - begin;
  const name = new Date(begin).toLocaleString("en-US", { month: "long", year: "numeric", timeZone: "UTC" });
  const cost = passed < TOO_EARLY_MS ? null : Math.round((spent * (Date.UTC(year, month + 1, 1) - begin)) / passed);
  return { month: name, daysSoFar: passed / DAY_MS, cost };
}

export function gpuHours(gpu_ms: number): string {
  return (gpu_ms / 3_600_000).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}

/** The chart for those who do not see it. */
export function inWords(stretches: readonly Stretch[], money: (micros: number) => string): string {
  const highest = stretches.reduce<Stretch | null>((best, one) => (best && best.cost >= one.cost ? best : one), null);
  if (!highest || highest.cost === 0) return "Nothing was spent.";
  const sum = stretches.reduce((all, one) => all + one.cost, 0);
  return `${money(sum)} from ${stretches[0]!.from} to ${stretches.at(-1)!.to}; the most, ${money(highest.cost)}, ${stretchName(highest)}.`;
}

export function stretchName({ from, to }: Pick<Stretch, "from" | "to">): string {
  return from === to ? `on ${from}` : `from ${from} to ${to}`;
}

/** Payers that cost anything here: the others need no colour. */
export function payersOf(usage: Pick<Usage, "lines">): Payer[] {
  return PAYERS.filter((payer) => usage.lines.some((line) => line.payer === payer && line.cost > 0));
}
