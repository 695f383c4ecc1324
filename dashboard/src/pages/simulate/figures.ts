/** What came of a simulation, as rows of a table, parts of bars and lines of charts. Pure. */

import { TIERS } from "../../api/jobs";
import { count, duration, percent } from "../../format";
import type { Line } from "../../parts/chart-data";
import { lineColour } from "../../parts/colours";
import type { Course, SimulatedPolicy } from "./shapes";

export interface Measure {
  key: string;
  label: string;
  text: (value: number) => string;
  least: boolean; // less is better
}

const seconds = (value: number) => duration(value * 1000);

export const MEASURES: readonly Measure[] = [
  { key: "cost_usd", label: "Cost of all jobs", text: dollars, least: true },
  { key: "mean_jct_s", label: "Completion, mean", text: seconds, least: true },
  { key: "p50_jct_s", label: "Completion, median", text: seconds, least: true },
  { key: "p90_jct_s", label: "Completion, 90th percentile", text: seconds, least: true },
  { key: "mean_wait_s", label: "Waiting, mean", text: seconds, least: true },
  { key: "mean_move_s", label: "of it moving", text: seconds, least: true },
  { key: "deadline_misses", label: "Deadlines missed", text: rounded, least: true },
  { key: "deadline_miss_share", label: "Share that missed theirs", text: percent, least: true },
  { key: "moves", label: "Moves", text: rounded, least: false },
  { key: "share_serverless", label: "Never left serverless", text: percent, least: false },
  { key: "faults", label: "Faults of machines", text: rounded, least: false },
  { key: "peak_nodes", label: "Rented nodes at once, at most", text: rounded, least: false },
];

export function dollars(usd: number): string {
  return `$${usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

function rounded(value: number): string {
  return Number.isInteger(value) ? count(value) : value.toFixed(1);
}

/** Which policies are the best ones by this measure; none where all are alike, or less is not better. */
export function bestOf(policies: readonly SimulatedPolicy[], { key, least, text }: Measure): Set<string> {
  const real = policies.filter((one) => one.name !== "clairvoyant");
  const lowest = text(Math.min(...real.map((one) => one.figures[key] ?? 0)));
  const best = real.filter((one) => text(one.figures[key] ?? 0) === lowest); // what looks alike is alike
  return new Set(least && best.length < real.length ? best.map((one) => one.name) : []);
}

/** "allpass costs $74.91; modal-only 2.9 times that, allpass-drain 4 % more." */
export function sentence(policies: readonly SimulatedPolicy[]): string {
  const [first, ...others] = policies;
  if (!first) return "";
  const own = first.figures.cost_usd ?? 0;
  const told = others.map((one) => `${one.name} ${against(one.figures.cost_usd ?? 0, own)}`).join(", ");
  return `${first.name} costs ${dollars(own)}${told ? `; ${told}` : ""}.`;
}

function against(cost: number, own: number): string {
  if (own === 0 || Math.abs(cost / own - 1) < 0.0005) return "the same";
  const ratio = cost / own;
  return ratio >= 2 ? `${ratio.toFixed(1)} times that` : `${percent(Math.abs(ratio - 1))} ${ratio > 1 ? "more" : "less"}`;
}

export interface Part {
  name: string;
  value: number;
  share: number; // of the longest bar, in percent
}

/** The parts of each policy's bar, on one scale for all. */
export function partsOf(policies: readonly SimulatedPolicy[], parts: (one: SimulatedPolicy) => Record<string, number>): Part[][] {
  const all = policies.map((one) => Object.entries(parts(one)));
  const most = Math.max(1e-9, ...all.map((list) => list.reduce((sum, [, value]) => sum + value, 0)));
  return all.map((list) => list.filter(([, value]) => value > 0).map(([name, value]) => ({ name, value, share: (100 * value) / most })));
}

export function completionLines(policies: readonly SimulatedPolicy[]): Line[] {
  return policies.map((one, at) => ({ label: one.name, colour: lineColour(at), points: rising(one.completion).map(([s, share]) => [Math.max(s, 0.1), 100 * share] as const) }));
}

/** The last point of each instant: a chart has one for each x. */
function rising(points: readonly (readonly [number, number])[]): (readonly [number, number])[] {
  return points.filter(([x], at) => points[at + 1]?.[0] !== x);
}

export function courseLines(policies: readonly SimulatedPolicy[], pick: (course: Course) => readonly (number | null)[]): Line[] {
  return policies.flatMap((one, at) => {
    if (!one.course) return [];
    const points = hours(one.course, pick(one.course));
    return points.length ? [{ label: one.name, colour: lineColour(at), points }] : [];
  });
}

export function machineLines(course: Course): Line[] {
  return TIERS.filter((tier) => course[tier]?.some((value) => value > 0)).map((tier) => ({ label: tier, colour: `--${tier}`, points: hours(course, course[tier]) }));
}

function hours(course: Course, values: readonly (number | null)[]): (readonly [number, number])[] {
  const points = course.times_s.map((s, at) => [s / 3600, values[at] ?? null] as const);
  return rising(points.filter((point): point is readonly [number, number] => point[1] !== null));
}
