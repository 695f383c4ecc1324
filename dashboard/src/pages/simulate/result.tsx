import { useMemo } from "preact/hooks";

import { count, duration, plural } from "../../format";
import { Chart } from "../../parts/chart";
import { figures as written, type Line } from "../../parts/chart-data";
import { bestOf, completionLines, courseLines, dollars, machineLines, MEASURES, partsOf, sentence, type Part } from "./figures";
import type { SimulatedPolicy, Simulation } from "./shapes";

const HEIGHT = 200;

export function SimulationResult({ simulation }: { simulation: Simulation }) {
  const { policies, trace, jobs, gpu_hours, span_s, seeds, options } = simulation;
  return (
    <section aria-label="What came of it" class="simulate-result">
      <p class="headline">{sentence(policies)}</p>
      <p class="faint">
        {trace}: {plural(jobs, "job")} of {count(Math.round(gpu_hours))} GPU h within {duration(span_s * 1000)}{seeds > 1 && `; figures are means of ${seeds} seeds, pictures show the first`}.{" "}
        {Object.entries(options).map(([name, value]) => `${name} ${value}`).join(", ")}.
      </p>
      <Figures policies={policies} />
      <div class="control-charts">
        <Bars title="Cost" hint="dollars for all jobs, by provider" policies={policies} parts={(one) => one.cost_by_provider_usd} text={dollars} />
        <Bars title="Waiting" hint="not training, mean per job" policies={policies} text={(s) => duration(s * 1000)}
          parts={(one) => ({ "queued and starting": Math.max(0, one.figures.mean_queue_s ?? 0), moving: one.figures.mean_move_s ?? 0 })} />
        <Bars title="Where jobs went" hint="of the first seed" policies={policies} text={count}
          parts={(one) => ({ "stayed on serverless": one.stayed, "began there and moved": one.moved, "began on a rented node": one.rented })} />
        <Bars title="Deadlines missed" hint="jobs that ended after theirs" policies={policies} parts={(one) => ({ missed: one.figures.deadline_misses ?? 0 })} text={written} />
      </div>
      <Courses policies={policies} />
    </section>
  );
}

function Figures({ policies }: { policies: readonly SimulatedPolicy[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Figures">
      <table class="simulate-table">
        <thead><tr><th>Measured</th>{policies.map((one) => <th key={one.name} class="number">{one.name}</th>)}</tr></thead>
        <tbody>
          {MEASURES.map((measure) => {
            const best = bestOf(policies, measure);
            return (
              <tr key={measure.key}>
                <th scope="row">{measure.label}</th>
                {policies.map((one) => <td key={one.name} class="number">{best.has(one.name) ? <b class="good">{measure.text(one.figures[measure.key] ?? 0)}</b> : measure.text(one.figures[measure.key] ?? 0)}</td>)}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

interface BarsProps {
  title: string;
  hint: string;
  policies: readonly SimulatedPolicy[];
  parts: (one: SimulatedPolicy) => Record<string, number>;
  text: (value: number) => string;
}

/** A bar for each policy, on one scale. What the colours are is written beside each part. */
function Bars({ title, hint, policies, parts, text }: BarsProps) {
  const rows = partsOf(policies, parts);
  const names = [...new Set(policies.flatMap((one) => Object.keys(parts(one))))];
  return (
    <section class="measure">
      <h2>{title} <span class="faint measure-hint">{hint}</span></h2>
      {names.length > 1 && <p class="payer-key small-text">{names.map((name, at) => <span key={name}><i class={`part part-${at % 4}`} /> {name}</span>)}</p>}
      <ul class="simulate-bars">
        {policies.map((one, at) => (
          <li key={one.name}>
            <span class="simulate-name">{one.name}</span>
            <span class="stacked" aria-hidden="true">{rows[at]!.map((part) => <i key={part.name} class={`part part-${names.indexOf(part.name) % 4}`} style={{ width: `${part.share}%` }} />)}</span>
            <span class="number">{inWords(rows[at]!, text)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function inWords(list: readonly Part[], text: (value: number) => string): string {
  return list.length ? list.map((part) => text(part.value)).join(" + ") : text(0);
}

function Courses({ policies }: { policies: readonly SimulatedPolicy[] }) {
  const drawn = useMemo(() => ({
    completion: completionLines(policies),
    queue: courseLines(policies, (course) => course.queue),
    budget: courseLines(policies, (course) => course.budget_s),
    machines: policies.flatMap((one): [string, Line[]][] => (one.course ? [[one.name, machineLines(one.course)]] : [])),
  }), [policies]);
  return (
    <div class="control-charts">
      <Drawn title="Completion" hint="share of jobs that have ended so long after submission" lines={drawn.completion} format={(value) => `${Math.round(value)} %`} what="after" logX formatX={(s) => duration(s * 1000)} />
      <Drawn title="Queue" hint="jobs without a place" lines={drawn.queue} format={written} what="after" formatX={hours} />
      <Drawn title="F" hint="seconds that a job may stay on serverless" lines={drawn.budget} format={written} what="after" formatX={hours} />
      {drawn.machines.map(([name, lines]) => <Drawn key={name} title={`Machines of ${name}`} hint="rented at once" lines={lines} format={written} what="after" formatX={hours} />)}
    </div>
  );
}

function hours(value: number): string {
  return `${written(value)} h`;
}

interface DrawnProps {
  title: string;
  hint: string;
  lines: readonly Line[];
  format: (value: number) => string;
  what: string;
  formatX: (value: number) => string;
  logX?: boolean;
}

function Drawn({ title, hint, lines, ...axis }: DrawnProps) {
  if (!lines.length) return null;
  return (
    <section class="measure">
      <h2>{title} <span class="faint measure-hint">{hint}</span></h2>
      <Chart title={title} lines={lines} height={HEIGHT} {...axis} />
    </section>
  );
}
