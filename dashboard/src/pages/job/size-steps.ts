/** How many GPUs a job had over time, as steps of a picture in percent. Pure. */

import type { JobSize } from "../../api/jobs";

export interface SizeStep {
  size: JobSize;
  left: number;
  width: number;
  height: number; // of the most that it had
}

export const MOST_ROWS = 12;

/** Whether its GPUs have changed while it ran: moves and new runs alone are told elsewhere. */
export function hasChanged(sizes: readonly JobSize[]): boolean {
  return sizes.some((one) => one.gpus_before !== null);
}

export function stepsOf(sizes: readonly JobSize[], now: number): SizeStep[] {
  if (!sizes.length) return [];
  const from = Math.min(...sizes.map((one) => Date.parse(one.from_at)));
  const to = Math.max(from + 1, ...sizes.map((one) => endOf(one, now)));
  const most = Math.max(1, ...sizes.map((one) => one.gpus));
  const left = (at: number) => (100 * (at - from)) / (to - from);
  return sizes.map((size) => {
    const begin = left(Date.parse(size.from_at));
    return { size, left: begin, width: Math.max(0, left(endOf(size, now)) - begin), height: (100 * size.gpus) / most };
  });
}

export function endOf(size: JobSize, now: number): number {
  return Math.max(Date.parse(size.from_at), size.to_at ? Date.parse(size.to_at) : now);
}

/** What a step was measured to take with so many GPUs, e.g. "0.21 s ±2 %"; "–" where that is not known. */
export function stepWords({ step_s, noise }: Pick<JobSize, "step_s" | "noise">): string {
  if (step_s == null || !(step_s > 0)) return "–";
  const shown = step_s >= 100 ? step_s.toFixed(0) : String(Number(step_s.toPrecision(2)));
  return `${shown} s${noise == null ? "" : ` ±${Math.round(100 * noise)} %`}`;
}
