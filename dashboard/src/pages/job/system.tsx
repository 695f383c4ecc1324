/** The machine under a job: GPUs, processor and memory over time, apart from what the job measures. */

import { useMemo } from "preact/hooks";

import { get } from "../../api/client";
import { isOver, type Job } from "../../api/jobs";
import { Chart } from "../../parts/chart";
import { useReading } from "../../parts/reading";
import { systemCharts, type SystemPoint } from "./system-lines";

const ANEW_MS = 10_000;
const MOST_POINTS = 600;

export function System({ job }: { job: Job }) {
  const read = (signal: AbortSignal) => get<{ points: SystemPoint[] }>(`v1/jobs/${encodeURIComponent(job.id)}/system`, { query: { max_points: MOST_POINTS }, signal });
  const { value, error } = useReading(`system ${job.id}`, read, isOver(job) ? 0 : ANEW_MS);
  const charts = useMemo(() => systemCharts(value?.points ?? []), [value]);
  if (!charts.length) return error ? <p class="bad" role="status">Its machine: {error.message}</p> : null;
  return (
    <section aria-labelledby="system">
      <h2 id="system">Its machine</h2>
      <div class="system-charts">
        {charts.map(({ key, title, hint, format, lines }) => (
          <section key={key} class="measure">
            <h3>{title} <span class="faint measure-hint">{hint}</span></h3>
            <Chart title={title} lines={lines} time height={170} format={format} what="time" />
          </section>
        ))}
      </div>
    </section>
  );
}
