/** Decisions as lines over time, oldest first. Pure. */

import type { Decision } from "../../api/control";
import type { Line } from "../../parts/chart-data";

/** What a policy does not measure leaves no line behind. */
export function lineOf(decisions: readonly Decision[], label: string, colour: string, value: (one: Decision) => number | null): Line | null {
  const points = decisions
    .map((one): readonly [number, number | null] => [Date.parse(one.at) / 1000, value(one)])
    .filter((point): point is readonly [number, number] => point[1] !== null)
    .sort(([a], [b]) => a - b);
  return points.length ? { label, colour, points } : null;
}

export function linesOf(lines: readonly (Line | null)[]): Line[] {
  return lines.filter((line): line is Line => line !== null);
}

/** "2 start, 1 release", the most frequent first. */
export function inWords(actions: Readonly<Record<string, number>>): string {
  const found = Object.entries(actions).filter(([, number]) => number > 0);
  return found.sort(([, a], [, b]) => b - a).map(([kind, number]) => `${number} ${kind}`).join(", ") || "nothing";
}
