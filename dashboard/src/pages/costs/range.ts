/** Which days one looks at. All days are of UTC, as the ledger's are. Pure. */

export const DAY_MS = 86_400_000;

export const PRESETS = [
  ["today", "Today"], ["7d", "7 days"], ["30d", "30 days"], ["month", "This month"], ["last", "Last month"], ["all", "All"],
] as const;
export type Preset = (typeof PRESETS)[number][0];

export interface Range {
  preset: Preset | null; // null: days of one's own
  from: string | null; // the first day; null: from the start
  to: string | null; // the last day; null: until now
}

const DAY = /^\d{4}-\d\d-\d\d$/;

export function dayOf(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10);
}

/** A day that there is on the calendar, or null. */
export function asDay(text: string | null): string | null {
  if (!text || !DAY.test(text)) return null;
  const ms = Date.parse(`${text}T00:00:00Z`);
  return Number.isFinite(ms) && dayOf(ms) === text ? text : null;
}

export function rangeOf(query: URLSearchParams, now: number): Range {
  const from = asDay(query.get("from"));
  const to = asDay(query.get("to"));
  if (from || to) return { preset: null, from: from && to && to < from ? to : from, to: from && to && to < from ? from : to };
  const preset = PRESETS.find(([name]) => name === query.get("range"))?.[0] ?? "30d";
  return { preset, ...daysOf(preset, now) };
}

function daysOf(preset: Preset, now: number): { from: string | null; to: string | null } {
  const [year, month] = [new Date(now).getUTCFullYear(), new Date(now).getUTCMonth()];
  switch (preset) {
    case "today": return { from: dayOf(now), to: null };
    case "7d": return { from: dayOf(now - 6 * DAY_MS), to: null };
    case "30d": return { from: dayOf(now - 29 * DAY_MS), to: null };
    case "month": return { from: dayOf(Date.UTC(year, month, 1)), to: null };
    case "last": return { from: dayOf(Date.UTC(year, month - 1, 1)), to: dayOf(Date.UTC(year, month, 0)) };
    case "all": return { from: null, to: null };
  }
}

/** As the service is asked: the last day counts whole. */
export function asked({ from, to }: Range): { from: string | null; to: string | null } {
  return { from: from && `${from}T00:00:00Z`, to: to && `${dayOf(Date.parse(`${to}T00:00:00Z`) + DAY_MS)}T00:00:00Z` };
}

/** The command that says the same; null where none does: it knows no end. */
export function commandOf({ from, to }: Range, by: string, job = ""): string | null {
  if (to) return null;
  const named = (word: string) => (/^[\w:.-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);
  return `allpass cost --by ${named(by)}${job ? ` --job ${named(job)}` : ""}${from ? ` --since ${from}T00:00Z` : ""}`;
}
