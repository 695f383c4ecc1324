/** What a job uses of its machines, as lines of charts: one chart for each unit. Pure. */

import { bytes } from "../../format";
import { figures, type Line } from "../../parts/chart-data";
import { lineColour } from "../../parts/colours";

export interface SystemPoint {
  at: string;
  values: Record<string, number>;
}

export interface SystemChart {
  key: string;
  title: string;
  hint: string;
  format: (value: number) => string;
  lines: Line[];
}

const CHARTS = [
  { key: "gpu", pattern: /^system\/(gpu\d+)\/util_percent$/, title: "GPU use", hint: "percent of the time in which it computes", format: share },
  { key: "gpu-memory", pattern: /^system\/(gpu\d+)\/memory_bytes$/, title: "GPU memory", hint: "in use, by whatever is there", format: bytes },
  { key: "cpu", pattern: /^system\/(cpu)_percent$/, title: "Processor", hint: "of the job's processes; 100 is one core", format: share },
  { key: "memory", pattern: /^system\/(memory)_bytes$/, title: "Memory", hint: "of the job's processes", format: bytes },
] as const;

function share(value: number): string {
  return `${figures(value)} %`;
}

/** Those that have points, in this order. A name that nobody knows is left out. */
export function systemCharts(points: readonly SystemPoint[]): SystemChart[] {
  return CHARTS.flatMap(({ key, pattern, title, hint, format }) => {
    const found = new Map<string, (readonly [number, number])[]>();
    for (const { at, values } of points) {
      for (const [name, value] of Object.entries(values)) {
        const label = pattern.exec(name)?.[1];
        if (label === undefined) continue;
        const line = found.get(label);
        if (line) line.push([Date.parse(at) / 1000, value]);
        else found.set(label, [[Date.parse(at) / 1000, value]]);
      }
    }
    const names = [...found.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const lines = names.map((label, at) => ({ label: label === "cpu" ? "processor" : label, colour: lineColour(at), points: found.get(label)! }));
    return lines.length ? [{ key, title, hint, format, lines }] : [];
  });
}
