/** How hard the deadlines press, and what the control loop makes of it: the Allpass paper's Figure 10, live. */

import { useMemo } from "preact/hooks";

import { get } from "../../api/client";
import type { Decision } from "../../api/control";
import { count, duration } from "../../format";
import { Chart } from "../../parts/chart";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { FiguresRow } from "../../parts/figures-row";
import { Part } from "../../parts/part";
import { useReading } from "../../parts/reading";
import { route } from "../../route";
import { lineOf, linesOf } from "./course";
import { Decisions } from "./decisions";
import { DecisionPage } from "./decision";
import { Service } from "./service";

const ANEW_MS = 3_000;
const MOST = 200;

export function Control() {
  const { id } = route.value;
  return id ? <DecisionPage key={id} id={id} /> : <Overview />;
}

function Overview() {
  const reading = useReading("pressure", (signal) => get<{ policy: string | null; decisions: Decision[] }>("v1/pressure", { signal, query: { limit: MOST } }), ANEW_MS);
  const decisions = reading.value?.decisions ?? [];
  return (
    <div class="control">
      <h1>Control</h1>
      {decisions[0] && <Now newest={decisions[0]} />}
      <Part title="Pressure, demand and capacity" reading={reading}>
        {() => (decisions.length ? <Course decisions={decisions} /> : <Empty title="No decision has been taken yet." />)}
      </Part>
      <Decisions />
      <Service />
    </div>
  );
}

function Now({ newest }: { newest: Decision }) {
  const p = newest.pressure;
  return (
    <FiguresRow figures={[
      ["Policy", newest.policy],
      ["Pressure p", p === null ? "not measured" : p.toFixed(2), p !== null && p > 1 ? "wait" : undefined],
      ["Serverless budget F", newest.serverless_budget_s === null ? "not measured" : duration(newest.serverless_budget_s * 1000)],
      ["Jobs that wait", count(newest.jobs_waiting)],
      ["Machines", count(Object.values(newest.nodes).reduce((sum, one) => sum + one, 0))],
      ["Decided in", `${count(newest.duration_ms)} ms`],
    ]} />
  );
}

const seconds = (value: number) => duration(value * 1000);

function Course({ decisions }: { decisions: readonly Decision[] }) {
  const charts = useMemo(() => [
    { title: "Pressure p; above 1 the rented GPUs alone cannot keep every deadline", lines: linesOf([lineOf(decisions, "p", "--wait", (one) => one.pressure)]) },
    { title: "Serverless budget F: how long a job may stay serverless", format: seconds, lines: linesOf([lineOf(decisions, "F", "--serverless", (one) => one.serverless_budget_s)]) },
    { title: "Demand D, in GPU hours due within the horizon", lines: linesOf([lineOf(decisions, "D", "--link", (one) => (one.demand_gpu_s === null ? null : one.demand_gpu_s / 3600))]) },
    { title: "Rented GPUs C, and jobs that wait", lines: linesOf([
      lineOf(decisions, "C", "--marketplace", (one) => one.capacity_gpus), lineOf(decisions, "waiting", "--bad", (one) => one.jobs_waiting)]) },
  ].filter((chart) => chart.lines.length), [decisions]);
  return (
    <div class="charts">
      {charts.map((chart) => (
        <section key={chart.title} aria-label={chart.title}>
          <h3>{chart.title}</h3>
          <Chart lines={chart.lines} title={chart.title} what="time" time height={150} format={chart.format} />
        </section>
      ))}
      <p><Command text="allpass pressure -n 20" /></p>
    </div>
  );
}
