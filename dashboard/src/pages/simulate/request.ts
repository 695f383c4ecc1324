/** The form of a simulation: what its address says, what the service is asked, and the command that plays the same. Pure. */

import { quoted } from "../job/changes";
import { POLICIES } from "../control/replays";
import type { TraceReport } from "./shapes";

export interface Fields {
  policies: string; // separated by commas
  like: string;
  jobs: string;
  draw: string; // the seed of the workload
  world: string;
  market: string;
  gpus: string;
  knowledge: string;
  deadlines: string;
  move: string;
  limit: string;
  pools: string; // of one's own machines, separated by commas
  seeds: string;
}

export const USUAL: Fields = {
  policies: "allpass,allpass-drain,modal-only", like: "seren", jobs: "200", draw: "0", world: "friendly", market: "flat", gpus: "one", knowledge: "", deadlines: "", move: "", limit: "", pools: "", seeds: "1",
};

export const KNOWN = [...POLICIES, "clairvoyant"] as const;
export const MOST_POLICIES = 8;
export const CHOICES = { like: ["seren", "kalos", "philly"], world: ["friendly", "measured", "harsh"], market: ["flat", "calm"], gpus: ["one", "trace"] } as const;
export const FORMATS = [["csv", "csv, of allpass trace"], ["philly", "Philly"], ["helios", "Helios"], ["acme", "Acme (Seren, Kalos)"], ["alibaba", "Alibaba"]] as const;

const NAMES = Object.keys(USUAL) as (keyof Fields)[];

export function fieldsOf(query: URLSearchParams): Fields {
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? USUAL[name]])) as unknown as Fields;
}

export function inAddress(fields: Fields): Record<string, string | null> {
  return Object.fromEntries(NAMES.map((name) => [name, fields[name].trim() === USUAL[name] ? null : fields[name].trim()]));
}

export function policiesOf(fields: Pick<Fields, "policies">): string[] {
  return [...new Set(listed(fields.policies))];
}

function listed(text: string): string[] {
  return text.split(",").map((one) => one.trim()).filter(Boolean);
}

export type Wrong = Partial<Record<keyof Fields | "trace", string>>;

/** `trace` null: jobs are generated. */
export function wrongOf(fields: Fields, trace: TraceReport | null): Wrong {
  const wrong: Wrong = {};
  const whole = (name: "jobs" | "draw" | "limit" | "seeds", least: number) => {
    if (!/^\d+$/.test(fields[name].trim()) || Number(fields[name]) < least) wrong[name] = `a whole number, at least ${least}`;
  };
  if (!trace) {
    whole("jobs", 1);
    whole("draw", 0);
  }
  whole("seeds", 1);
  if (fields.limit.trim()) whole("limit", 0);
  if (fields.move.trim() && !(Number(fields.move) >= 0)) wrong.move = "seconds";
  const chosen = policiesOf(fields).length;
  if (chosen < 1 || chosen > MOST_POLICIES) wrong.policies = `choose 1 to ${MOST_POLICIES}`;
  return wrong;
}

export function bodyOf(fields: Fields, trace: TraceReport | null): Record<string, unknown> {
  const { like, world, market, gpus } = fields;
  return {
    ...(trace ? { trace: { sha256: trace.sha256, name: trace.name } } : { generated: { like, jobs: Number(fields.jobs), seed: Number(fields.draw) } }),
    policies: policiesOf(fields),
    world, market, gpus,
    ...(fields.knowledge.trim() && { knowledge: fields.knowledge.trim() }),
    ...(fields.deadlines.trim() && { deadlines: fields.deadlines.trim() }),
    ...(fields.move.trim() && { move_seconds: Number(fields.move) }),
    ...(fields.limit.trim() && { serverful_limit: Number(fields.limit) }),
    ...(fields.pools.trim() && { pools: listed(fields.pools) }),
    seeds: Number(fields.seeds),
  };
}

/** A workload that the command does not generate by itself is written to a file first. */
export function commandOf(fields: Fields, file: string | null): string {
  const isUsual = (["like", "jobs", "draw"] as const).every((name) => fields[name].trim() === USUAL[name]);
  const made = file === null && !isUsual;
  const first = made ? `allpass trace generate --like ${quoted(fields.like)} --jobs ${quoted(fields.jobs)} --seed ${quoted(fields.draw)} -o jobs.csv && ` : "";
  const trace = file ?? (made ? "jobs.csv" : null);
  const asLive = made ? { knowledge: fields.knowledge.trim() || "after:60:0.2", move: fields.move.trim() || "5" } : { knowledge: fields.knowledge, move: fields.move };
  const pools = listed(fields.pools).map((word): [string, string, string] => ["--pool", word, ""]);
  const options: [string, string, string][] = [
    ["--world", fields.world, USUAL.world], ["--market", fields.market, USUAL.market], ["--gpus", fields.gpus, USUAL.gpus], ["--knowledge", asLive.knowledge, ""],
    ["--deadlines", fields.deadlines, ""], ["--move-seconds", asLive.move, ""], ["--serverful-limit", fields.limit, ""], ...pools, ["--seeds", fields.seeds, USUAL.seeds],
  ];
  const given = options.filter(([, value, usual]) => value.trim() && value.trim() !== usual).map(([name, value]) => ` ${name} ${quoted(value.trim())}`).join("");
  const policies = policiesOf(fields).map((name) => ` --policy ${quoted(name)}`).join("");
  return `${first}allpass simulate${trace ? ` --trace ${quoted(trace)}` : ""}${policies}${given}`;
}

/** Which field the service speaks of. */
export function fieldAbout(param: string | null): keyof Wrong | null {
  const names: Record<string, keyof Wrong> = { move_seconds: "move", serverful_limit: "limit", generated: "jobs" };
  const first = param?.split(".")[0] ?? "";
  return names[first] ?? (first === "trace" || first in USUAL ? (first as keyof Wrong) : null);
}
