import { count } from "../../format";
import { gpuTime, newestWith, ratio, seconds, strain, type Decision } from "./decisions";

/** What the newest decisions say, as figures. */
export function Figures({ list }: { list: readonly Decision[] }) {
  const newest = list[0];
  if (!newest) return null;
  const recent = list.slice(0, 200);
  const pressure = newestWith(recent, (one) => one.pressure);
  const state = strain(pressure);
  return (
    <dl class="figures control-figures">
      <div><dt>Pressure p</dt><dd class={state.kind}>{ratio(pressure)}</dd><dd class="note faint">{state.text}</dd></div>
      <div><dt>Serverless budget F</dt><dd>{seconds(newestWith(recent, (one) => one.serverless_budget_s))}</dd><dd class="note faint">then a job moves to what is cheaper</dd></div>
      <div><dt>Demand D</dt><dd>{gpuTime(newestWith(recent, (one) => one.demand_gpu_s))}</dd><dd class="note faint">due within the horizon</dd></div>
      <div><dt>Capacity C</dt><dd>{capacity(newestWith(recent, (one) => one.capacity_gpus))}</dd><dd class="note faint">{nodes(newest)}</dd></div>
      <div><dt>Queue</dt><dd>{count(newest.jobs_waiting)}</dd><dd class="note faint">{newest.jobs_waiting === 1 ? "job waits" : "jobs wait"} for a place</dd></div>
    </dl>
  );
}

function capacity(gpus: number | null): string {
  return gpus === null ? "–" : `${count(gpus)} ${gpus === 1 ? "GPU" : "GPUs"}`;
}

function nodes({ nodes: by }: Decision): string {
  const rented = Object.entries(by).filter(([, number]) => number > 0);
  return rented.length ? `machines: ${rented.map(([tier, number]) => `${number} ${tier}`).join(", ")}` : "no machine is rented";
}
