import { useMemo } from "preact/hooks";

import { get } from "../../api/client";
import { isOver, type Job, type MetricPoint } from "../../api/jobs";
import type { Page } from "../../api/types";
import { figures, type Line } from "../../parts/chart-data";
import { Chart } from "../../parts/chart";
import { lineColour } from "../../parts/colours";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { Spark } from "../../parts/spark";
import { useReading } from "../../parts/reading";
import { route, setQuery } from "../../route";
import type { TabProps } from ".";
import { metricsOf, thinned, type Metric } from "./metric-lines";
import { OtherRuns } from "./other-runs";
import { System } from "./system";

const ANEW_MS = 5_000;
const OTHERS_ANEW_MS = 20_000;
const MOST_POINTS = 1_500;
export const MOST_OTHERS = 7;

/** What it learns: any metric by step, beside those of other runs. */
export function Metrics({ job }: TabProps) {
  const { query } = route.value;
  const own = useReading(`metrics ${job.id}`, (signal) => read(job.id, null, signal), isOver(job) ? 0 : ANEW_MS);
  const metrics = useMemo(() => metricsOf(own.value ?? []), [own.value]);
  if (!own.value) return own.error ? <Failure error={own.error} again={own.again} /> : <Loading what="Reading the metrics" />;
  const chosen = metrics.find((one) => one.name === query.get("metric")) ?? metrics[0];
  if (!chosen) return <><NoMetrics job={job} /><System job={job} /></>;
  const others = (query.get("with") ?? "").split(",").filter(Boolean).slice(0, MOST_OTHERS);
  return (
    <div class="metrics">
      <div class="metric-tiles" role="group" aria-label="Metrics">
        {metrics.slice(0, 60).map((metric) => <Tile key={metric.name} metric={metric} chosen={metric === chosen} />)}
      </div>
      <Compared job={job} metric={chosen} others={others} log={query.get("log") === "1"} />
      <OtherRuns job={job} chosen={others} />
      <System job={job} />
      <p><Command text={`allpass metrics ${job.id} --metric ${/^[\w./-]+$/.test(chosen.name) ? chosen.name : JSON.stringify(chosen.name)}`} /></p>
    </div>
  );
}

async function read(id: string, name: string | null, signal: AbortSignal): Promise<MetricPoint[]> {
  const query = { max_points: MOST_POINTS, names: name };
  return (await get<Page<MetricPoint>>(`v1/jobs/${encodeURIComponent(id)}/metrics`, { query, signal })).data;
}

function Tile({ metric, chosen }: { metric: Metric; chosen: boolean }) {
  const values = thinned(metric.points);
  return (
    <button type="button" class="metric-tile" aria-pressed={chosen} onClick={() => setQuery({ metric: metric.name })}>
      <span class="cut" title={metric.name}>{metric.name}</span>
      <b>{figures(metric.last)}</b>
      <Spark values={values} width={120} height={28} label={`from ${figures(values[0])} to ${figures(metric.last)}`} />
    </button>
  );
}

interface Run {
  id: string;
  name: string;
  points: Metric["points"];
}

function Compared({ job, metric, others, log }: { job: Job; metric: Metric; others: readonly string[]; log: boolean }) {
  const key = `others ${others.join(",")} ${metric.name}`;
  const reading = useReading(key, (signal) => Promise.all(others.map((id) => run(id, metric.name, signal))), others.length ? OTHERS_ANEW_MS : 0);
  const lines = useMemo<Line[]>(() => [
    ...(reading.value ?? []).map((one, at) => ({ label: one.name, points: one.points, colour: lineColour(at + 1), faint: true })),
    { label: others.length ? `${job.name} (this one)` : metric.name, points: metric.points, colour: lineColour(0) },
  ].reverse(), [reading.value, metric.points, metric.name, job.name, others.length]);
  return (
    <section aria-labelledby="metric">
      <div class="between chart-head">
        <h2 id="metric">{metric.name}</h2>
        <label class="check"><input type="checkbox" checked={log} onChange={(event) => setQuery({ log: event.currentTarget.checked ? "1" : null })} /> Log scale</label>
      </div>
      {reading.error && <p class="bad" role="status">Other runs: {reading.error.message}</p>}
      <Chart key={metric.name} title={metric.name} lines={lines} log={log} />
      <p class="faint small-text">Drag over the chart to look closer, double-click to see all of it.</p>
    </section>
  );
}

async function run(id: string, name: string, signal: AbortSignal): Promise<Run> {
  const [job, points] = await Promise.all([get<Job>(`v1/jobs/${encodeURIComponent(id)}`, { signal }), read(id, name, signal)]);
  return { id, name: `${job.name} ${id.slice(-4)}`, points: metricsOf(points).find((one) => one.name === name)?.points ?? [] };
}

function NoMetrics({ job }: { job: Job }) {
  return (
    <Empty title={isOver(job) ? "It reported no metrics." : "No metrics yet"}>
      <p>What a script reports by step stands here within seconds; the recipe of <code>allpass finetune</code> does so by itself.</p>
    </Empty>
  );
}
