/** A decision that is taken again: its shapes (sdk/allpass/wire/ticks.py) and what it comes to. Pure. */

import type { Decision } from "./decisions";

export interface PlannedAction {
  kind: string;
  job_id: string | null;
  node_id: string | null;
  offer: string | null;
  price_per_hour: number | null;
  reason: string;
}

export interface Replay {
  id: number;
  at: string;
  policy_then: string;
  policy_now: string;
  same: boolean;
  caveat: string | null;
  both: PlannedAction[];
  only_then: PlannedAction[];
  only_now: PlannedAction[];
  waits: { job_id: string; then: string | null; now: string | null }[];
  unchanged_waits: number;
  others: { both: number; only_then: number; only_now: number; waits: number };
  signals_then: Record<string, number>;
  signals_now: Record<string, number>;
}

/** The names that the service knows; one that it does not know is answered with all it does. */
export const POLICIES = [
  "allpass", "allpass-drain", "allpass-paper", "cheapest-first", "cornucopia", "fixed-threshold", "hpa", "hpa-conventional", "modal-only", "sjf", "sjf-np", "tiresias-l", "tiresias-l-np",
] as const;

const SIGNALS: Record<string, string> = { p: "pressure p", F_s: "F in s", C: "GPUs", D_gpu_s: "demand in GPU s", jobs_waiting: "jobs waiting" };

export interface Difference {
  name: string;
  then: number | null;
  now: number | null;
}

/** The measures that came out differently, by their usual names. */
export function differences({ signals_then, signals_now }: Pick<Replay, "signals_then" | "signals_now">): Difference[] {
  const names = new Set([...Object.keys(signals_then), ...Object.keys(signals_now)]);
  return [...names]
    .map((name) => ({ name: SIGNALS[name] ?? name.replaceAll("_", " "), then: signals_then[name] ?? null, now: signals_now[name] ?? null }))
    .filter((one) => one.then !== one.now);
}

/** How many actions were planned then and never tried: left out by a limit, or since what they are about had changed. */
export function droppedOf(decision: Pick<Decision, "actions">, replay: Replay): number {
  const planned = replay.both.length + replay.only_then.length + replay.others.both + replay.others.only_then;
  const tried = Object.values(decision.actions).reduce((sum, one) => sum + one, 0);
  return Math.max(0, planned - tried);
}

/** "move_gain=1.5 patience_ms=30000" as the service takes it; what is not understood is named. */
export function rulesOf(text: string): { rules: Record<string, number>; wrong: string | null } {
  const rules: Record<string, number> = {};
  for (const word of text.split(/[\s,;]+/).filter(Boolean)) {
    const [name = "", value = ""] = word.split("=", 2);
    if (!name || value === "" || !Number.isFinite(Number(value))) return { rules, wrong: word };
    rules[name] = Number(value);
  }
  return { rules, wrong: null };
}

export function commandOf(id: number, policy: string | null, rules: Record<string, number>): string {
  const set = Object.entries(rules).map(([name, value]) => ` --set ${name}=${value}`).join("");
  return `allpass replay ${id}${policy ? ` --policy ${policy}` : ""}${set}`;
}
