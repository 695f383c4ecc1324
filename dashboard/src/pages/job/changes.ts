/** New deadlines and limits as one types them: read, checked, sent, and as the command that does the same. Pure. */

import type { Job } from "../../api/jobs";

export interface LimitTexts {
  max_cost: string; // dollars
  max_hourly: string; // dollars
  max_duration: string; // "8h"
  max_wait: string; // "30m"
}

const UNITS: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, hr: 3600, d: 86_400, w: 604_800 };

/** "1d12h", "90m", "8h": seconds, or null for what is none. */
export function seconds(text: string): number | null {
  const compact = text.toLowerCase().replaceAll(/\s/g, "");
  if (!/^(\d+(\.\d+)?[a-z]+)+$/.test(compact)) return null;
  let sum = 0;
  for (const [, amount, unit] of compact.matchAll(/(\d+(?:\.\d+)?)([a-z]+)/g)) {
    const size = UNITS[unit!];
    if (size === undefined) return null;
    sum += Number(amount) * size;
  }
  return sum >= 1 ? Math.round(sum) : null;
}

/** As seconds() reads it: 30600 is "8h30m". */
export function spanText(s: number | null): string {
  if (s === null) return "";
  const parts = [[86_400, "d"], [3600, "h"], [60, "m"], [1, "s"]] as const;
  let rest = s;
  return parts.reduce((text, [size, unit]) => {
    const amount = Math.floor(rest / size);
    rest -= amount * size;
    return amount ? `${text}${amount}${unit}` : text;
  }, "");
}

/** Dollars above zero, or null. */
export function dollars(text: string): number | null {
  const clean = text.trim().replace(/^\$/, "");
  if (!/^\d+(\.\d+)?$/.test(clean)) return null;
  const amount = Number(clean);
  return amount > 0 && amount <= 1_000_000 ? amount : null;
}

export function limitTexts(job: Job): LimitTexts {
  const usd = (micros: number | null) => (micros === null ? "" : String(micros / 1e6));
  return { max_cost: usd(job.max_cost), max_hourly: usd(job.max_hourly), max_duration: spanText(job.max_duration_s), max_wait: spanText(job.max_wait_s) };
}

export interface LimitChange {
  body: Record<string, number | null>; // empty: nothing changed
  wrong: (keyof LimitTexts)[];
  command: string;
}

const FIELDS = [
  ["max_cost", "max_cost_usd", "--max-cost", dollars],
  ["max_hourly", "max_hourly_usd", "--max-hourly", dollars],
  ["max_duration", "max_duration_s", "--max-duration", seconds],
  ["max_wait", "max_wait_s", "--max-wait", seconds],
] as const;

/** Only what differs is sent; an empty field takes the limit away. */
export function limitChange(id: string, before: LimitTexts, now: LimitTexts): LimitChange {
  const change: LimitChange = { body: {}, wrong: [], command: `allpass set ${id}` };
  for (const [name, field, option, read] of FIELDS) {
    const text = now[name].trim();
    if (text === before[name]) continue;
    const value = text ? read(text) : null;
    if (text && value === null) change.wrong.push(name);
    else {
      change.body[field] = value;
      change.command += ` ${option} ${text ? text.replace(/^\$/, "").replaceAll(/\s/g, "") : "none"}`;
    }
  }
  return change;
}

/** What stopping loses: the steps since the newest checkpoint. */
export function unsavedSteps(job: Job): number {
  return Math.max(0, job.step - (job.checkpoint_step ?? 0));
}

export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}
