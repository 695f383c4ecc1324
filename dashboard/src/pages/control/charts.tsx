import { useMemo } from "preact/hooks";

import { figures, type Line } from "../../parts/chart-data";
import { Chart } from "../../parts/chart";
import { level, pointsOf, ratio, type Decision } from "./decisions";

const HEIGHT = 170;

/** What the loop has measured, decision by decision: one axis of time, one chart for each unit. */
export function Charts({ list }: { list: readonly Decision[] }) {
  const lines = useMemo(() => linesOf(list), [list]);
  return (
    <div class="control-charts">
      <Measure title="Pressure p" hint="above 1 the rented GPUs alone cannot keep every deadline" lines={lines.pressure} format={ratio} />
      <Measure title="Serverless budget F" hint="minutes that a job may stay on serverless" lines={lines.budget} format={figures} />
      <Measure title="Demand D" hint="GPU-hours of work due within the horizon" lines={lines.demand} format={figures} />
      <Measure title="Capacity C and queue" hint="rented GPUs, those that start included, and jobs that wait" lines={lines.capacity} format={figures} />
    </div>
  );
}

function linesOf(list: readonly Decision[]): Record<"pressure" | "budget" | "demand" | "capacity", Line[]> {
  const pressure = pointsOf(list, (one) => one.pressure);
  const budget = pointsOf(list, (one) => per(one.serverless_budget_s, 60));
  const demand = pointsOf(list, (one) => per(one.demand_gpu_s, 3600));
  const capacity = pointsOf(list, (one) => one.capacity_gpus);
  const waiting = pointsOf(list, (one) => one.jobs_waiting);
  return {
    pressure: pressure.length ? [{ label: "p", colour: "--link", points: pressure }, ...level(pressure, 1, "all that is rented")] : [],
    budget: budget.length ? [{ label: "F, min", colour: "--serverless", points: budget }] : [],
    demand: demand.length ? [{ label: "D, GPU h", colour: "--conventional", points: demand }] : [],
    capacity: [
      ...(capacity.length ? [{ label: "C, GPUs", colour: "--marketplace", points: capacity }] : []),
      ...(waiting.length ? [{ label: "jobs waiting", colour: "--wait", points: waiting }] : []),
    ],
  };
}

/** In a larger unit, or not measured as before. */
function per(value: number | null, unit: number): number | null {
  return value === null ? null : value / unit;
}

interface MeasureProps {
  title: string;
  hint: string;
  lines: Line[];
  format: (value: number) => string;
}

function Measure({ title, hint, lines, format }: MeasureProps) {
  return (
    <section class="measure">
      <h2>{title} <span class="faint measure-hint">{hint}</span></h2>
      {lines.length
        ? <Chart title={title} lines={lines} time height={HEIGHT} format={format} what="time" />
        : <p class="measure-none faint">No decision in this time has measured it.</p>}
    </section>
  );
}
