/** Decisions of the control loop: their shapes (sdk/allpass/wire/pressure.py and ticks.py), and what is made of them. Pure. */

import { duration } from "../../format";
import { figures, type Line } from "../../parts/chart-data";

export interface Decision {
  id: number;
  at: string;
  policy: string;
  trigger: string;
  pressure: number | null;
  serverless_budget_s: number | null;
  capacity_gpus: number | null;
  demand_gpu_s: number | null;
  jobs_waiting: number;
  nodes: Record<string, number>;
  actions: Record<string, number>;
  reasons: string[];
  duration_ms: number;
}

export interface Pressure {
  policy: string | null;
  decisions: Decision[];
}

export const WINDOWS = { "15m": 900_000, "1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000 } as const;
export type WindowName = keyof typeof WINDOWS;

export function windowOf(text: string | null): WindowName {
  return text !== null && Object.hasOwn(WINDOWS, text) ? (text as WindowName) : "1h";
}

/** Both lists are newest first; so is the result, with each decision once. The same list where nothing is new. */
export function merged(known: readonly Decision[], read: readonly Decision[]): readonly Decision[] {
  const newest = known[0]?.id ?? -1;
  const oldest = known.at(-1)?.id ?? Infinity;
  const above = read.filter((one) => one.id > newest);
  const below = known.length ? read.filter((one) => one.id < oldest) : [];
  return above.length || below.length ? [...above, ...known, ...below] : known;
}

/** Whether decisions lie between what is known and what was read, that nobody has read. */
export function leavesGap(known: readonly Decision[], read: readonly Decision[], limit: number): boolean {
  const oldest = read.at(-1);
  return known.length > 0 && oldest !== undefined && read.length >= limit && oldest.id > known[0]!.id;
}

export function within(list: readonly Decision[], from: number): readonly Decision[] {
  const end = list.findIndex((one) => Date.parse(one.at) < from);
  return end < 0 ? list : list.slice(0, end);
}

type Points = [number, number][];

/** One measure over time, in seconds as the chart takes them; without the decisions that did not measure it. */
export function pointsOf(list: readonly Decision[], value: (one: Decision) => number | null | undefined): Points {
  const points: Points = [];
  for (let at = list.length - 1; at >= 0; at -= 1) {
    const found = value(list[at]!);
    if (found !== null && found !== undefined) points.push([Date.parse(list[at]!.at) / 1000, found]);
  }
  return points;
}

/** A level to compare with, as long as the line is. */
export function level(points: Points, value: number, label: string): Line[] {
  const first = points[0];
  const last = points.at(-1);
  return first && last ? [{ label, colour: "--bad", faint: true, points: [[first[0], value], [last[0], value]] }] : [];
}

export function newestWith(list: readonly Decision[], value: (one: Decision) => number | null): number | null {
  for (const one of list) {
    const found = value(one);
    if (found !== null) return found;
  }
  return null;
}

/** "2 start, 1 release", or "nothing". */
export function chose(actions: Record<string, number>): string {
  return Object.entries(actions).map(([kind, count]) => `${count} ${kind}`).join(", ") || "nothing";
}

export function isQuiet(one: Decision): boolean {
  return Object.keys(one.actions).length === 0;
}

/** GPU-seconds: "42 GPU s", "3.5 GPU h". */
export function gpuTime(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${Math.round(seconds)} GPU s`;
  if (seconds < 6_000) return `${Math.round(seconds / 60)} GPU min`;
  const hours = seconds / 3600;
  return `${hours < 100 ? hours.toFixed(1) : Math.round(hours).toLocaleString("en-US")} GPU h`;
}

export function seconds(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : duration(value * 1000);
}

export function ratio(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value < 100 ? value.toFixed(2) : figures(value);
}

/** What the pressure means, in words and as a colour. */
export function strain(pressure: number | null): { kind: "faint" | "good" | "wait" | "bad"; text: string } {
  if (pressure === null) return { kind: "faint", text: "not measured by this policy" };
  if (pressure > 1) return { kind: "bad", text: "the rented GPUs alone cannot keep every deadline" };
  if (pressure > 0.8) return { kind: "wait", text: "nearly all that is rented is needed" };
  return { kind: "good", text: "the rented GPUs keep every deadline" };
}
