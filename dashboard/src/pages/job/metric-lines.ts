/** The metrics of a job as lines of a chart. Pure. */

import type { MetricPoint } from "../../api/jobs";

export interface Metric {
  name: string;
  points: (readonly [step: number, value: number])[];
  last: number;
}

/** By name: losses first, then by the alphabet. */
export function metricsOf(points: readonly MetricPoint[]): Metric[] {
  const found = new Map<string, (readonly [number, number])[]>();
  for (const { step, values } of points) {
    for (const [name, value] of Object.entries(values)) {
      const line = found.get(name);
      if (line) line.push([step, value]);
      else found.set(name, [[step, value]]);
    }
  }
  return [...found].map(([name, line]) => ({ name, points: risingOnly(line), last: line.at(-1)![1] })).sort(byInterest);
}

/** After a loss of steps they are taken again: of one step the newest value counts. */
function risingOnly(line: (readonly [number, number])[]): (readonly [number, number])[] {
  const byStep = new Map(line);
  if (byStep.size === line.length && line.every(([step], at) => at === 0 || step > line[at - 1]![0])) return line;
  return [...byStep].sort((a, b) => a[0] - b[0]);
}

function byInterest(a: Metric, b: Metric): number {
  return rank(a.name) - rank(b.name) || (a.name < b.name ? -1 : 1);
}

function rank(name: string): number {
  if (name === "loss") return 0;
  if (/train.*loss/.test(name)) return 1;
  if (name.includes("loss")) return 2;
  return /acc|f1|bleu|rouge|perplex|reward/.test(name) ? 3 : 4;
}

/** At most `most` of the values, evenly, for a small line. */
export function thinned(points: readonly (readonly [number, number])[], most = 60): number[] {
  if (points.length <= most) return points.map(([, value]) => value);
  return Array.from({ length: most }, (_, at) => points[Math.round((at * (points.length - 1)) / (most - 1))]![1]);
}
