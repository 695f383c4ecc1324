/** The pieces of a line: each says one thing of a job, in one place of every layout. */

import type { JobLine } from "../../api/jobs";
import { absolute, duration, hourly, money, percent } from "../../format";
import { figures } from "../../parts/chart-data";
import { ClassMark } from "../../parts/class-mark";
import { gpus, Tier } from "../../parts/place";
import { Spark } from "../../parts/spark";
import { now } from "../../parts/time";
import { inTime, instead, remaining, savedKind, share, speed, steps } from "./facts";

export function WhereCell({ job }: { job: JobLine }) {
  const at = job.where;
  if (!at) return <div class="cell two faint" title={instead(job)}><span class="clamp">{instead(job) || "–"}</span></div>;
  return (
    <div class="cell two" title={`${at.provider}, ${gpus(at.gpu_type, at.gpu_count)}, ${hourly(at.price_per_hour)}, ${at.node_id}`}>
      <Tier tier={at.tier} />
      <span class="cut">{at.provider} {gpus(at.gpu_type, at.gpu_count)} <span class="faint">{hourly(at.price_per_hour)}</span></span>
    </div>
  );
}

/** The same on one line, for layouts without a column for it. */
export function WhereLine({ job }: { job: JobLine }) {
  const at = job.where;
  const mark = <ClassMark of={job.priority_class ?? ""} spotOnly />;
  if (!at) return <span class="cut faint" title={instead(job)}>{mark}{instead(job) || job.app_name}</span>;
  return (
    <span class="cut">
      {mark}<Tier tier={at.tier} /> {at.provider} {gpus(at.gpu_type, at.gpu_count)} <span class="faint">{hourly(at.price_per_hour)}</span>
    </span>
  );
}

export function Progress({ step, total, label, kind = "" }: { step: number; total: number | null; label?: string; kind?: string }) {
  const part = share(step, total);
  return (
    <div class={`progress ${kind}`} role="img" aria-label={label ?? (part === null ? `step ${step}` : `${percent(part)} of its steps`)}>
      <div style={{ width: `${(part ?? 0) * 100}%` }} />
    </div>
  );
}

export function StepsCell({ job }: { job: JobLine }) {
  return (
    <div class="cell two">
      <span class="number">{steps(job.step, job.total_steps)}</span>
      <Progress step={job.step} total={job.total_steps} kind={job.status} />
    </div>
  );
}

export function LossCell({ job, width = 80, value = true }: { job: JobLine; width?: number; value?: boolean }) {
  const last = job.losses.at(-1);
  if (last === undefined) return <div class="cell loss faint">–</div>;
  return (
    <div class="cell loss">
      <Spark values={job.losses} width={width} label={`loss, from ${figures(job.losses[0])} to ${figures(last)}`} />
      {value && <span class="number">{figures(last)}</span>}
    </div>
  );
}

export function DoneIn({ job, more = "" }: { job: JobLine; more?: string }) {
  const at = job.estimated_finish_at;
  const left = remaining(job, now.value);
  return <span title={at ? absolute(at) : undefined}>{left}{/\d/.test(left) && more}</span>;
}

/** Of a job that is over: how long it took; else what is left, and how fast it is. */
export function DoneCell({ job }: { job: JobLine }) {
  if (job.ended_at) {
    return (
      <div class="cell two number">
        <span class="faint" title={`ended ${absolute(job.ended_at)}`}>took {duration(Date.parse(job.ended_at) - Date.parse(job.submitted_at))}</span>
        <span class="faint">{speed(job.step_ms)}</span>
      </div>
    );
  }
  return <div class="cell two number"><DoneIn job={job} /><span class="faint">{speed(job.step_ms)}</span></div>;
}

const KIND_CLASS = { none: "faint", good: "good", ahead: "", risk: "wait", late: "bad" } as const;

export function Deadline({ job }: { job: JobLine }) {
  const { kind, text } = inTime(job, now.value);
  const why = kind === "risk" ? "Its expected end is after its deadline. " : "";
  return <span class={KIND_CLASS[kind]} title={`${why}${absolute(job.soft_deadline)}`}>{text}</span>;
}

export function DeadlineCell({ job }: { job: JobLine }) {
  const risk = inTime(job, now.value).kind === "risk";
  return <div class="cell two number"><Deadline job={job} />{risk && <span class="wait">will be late</span>}</div>;
}

const LEAST_SAVED = 1_000; // a tenth of a cent: below that it says nothing

export function Saved({ saved }: { saved: number | null }) {
  if (saved === null || Math.abs(saved) < LEAST_SAVED) return null;
  const what = saved > 0 ? "less than all on serverless" : "more than all on serverless";
  return <span class={savedKind(saved)} title={`${money(Math.abs(saved))} ${what}`}>{saved > 0 ? "saved" : "more"} {money(Math.abs(saved))}</span>;
}

export function SpentCell({ cost, saved }: { cost: number; saved: number | null }) {
  return <div class="cell two number"><span>{money(cost)}</span><Saved saved={saved} /></div>;
}
