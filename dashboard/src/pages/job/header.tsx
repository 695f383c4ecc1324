import { isOver, type Job } from "../../api/jobs";
import { absolute, count, duration, money, percent } from "../../format";
import { ClassMark } from "../../parts/class-mark";
import { Place } from "../../parts/place";
import { Status } from "../../parts/status";
import { now } from "../../parts/time";
import { href } from "../../route";
import { Progress } from "../jobs/cells";
import { inTime, remaining, share } from "../jobs/facts";
import { Actions } from "./actions";

/** Above all tabs: which job, how it stands, where it is, and what one can do about it. */
export function Header({ job, changed }: { job: Job; changed: () => void }) {
  return (
    <header class="job-head">
      <div class="job-title">
        <div>
          <p class="job-way faint"><a href={href("jobs")}>Jobs</a> › <a href={href("jobs", null, null, { app_id: job.app_id })}>{job.app_name}</a> version {job.app_version}
            {job.sweep_id && <> › <a href={href("jobs", null, null, { sweep_id: job.sweep_id })}>sweep</a></>}
          </p>
          <h1 title={job.name}>{job.name}</h1>
          <p class="job-line"><Status status={job.status} /><ClassMark of={String(job.template.priority_class ?? "guaranteed")} />{job.where && <Place at={job.where} />}<span class="mono faint">{job.id}</span></p>
        </div>
        <Actions job={job} changed={changed} />
      </div>
      {(job.message || job.reason) && <p class={`job-why ${job.status === "failed" ? "bad" : ""}`}>{job.message ?? job.reason!.replaceAll("_", " ")}</p>}
      <Figures job={job} />
    </header>
  );
}

function Figures({ job }: { job: Job }) {
  const part = share(job.step, job.total_steps);
  return (
    <dl class="figures">
      <div><dt>Step</dt><dd>{count(job.step)}</dd>
        <dd class="note faint">{job.total_steps === null ? "of an unknown number" : `of ${count(job.total_steps)}${part === null ? "" : `, ${percent(part)}`}`}</dd>
        <dd class="note"><Progress step={job.step} total={job.total_steps} kind={job.status} /></dd></div>
      <Done job={job} />
      <Deadline job={job} />
      <div><dt>Spent</dt><dd>{money(job.cost)}</dd>
        <dd class="note faint">{job.max_cost === null ? "no limit" : `of at most ${money(job.max_cost)}`}</dd></div>
    </dl>
  );
}

function Done({ job }: { job: Job }) {
  if (isOver(job) && job.ended_at) {
    return (
      <div><dt>Took</dt><dd>{duration(Date.parse(job.ended_at) - Date.parse(job.submitted_at))}</dd>
        <dd class="note faint">ended {absolute(job.ended_at)}</dd></div>
    );
  }
  const left = remaining(job, now.value);
  const bounds = job.expected && job.expected.least !== job.expected.most ? job.expected : null;
  const span = (at: string) => duration(Math.max(0, Date.parse(at) - now.value));
  return (
    <div><dt>Done in</dt><dd>{left === "–" ? "not known yet" : left}</dd>
      <dd class="note faint">{bounds ? `between ${span(bounds.earliest_at)} and ${span(bounds.latest_at)}` : job.estimated_finish_at ? absolute(job.estimated_finish_at) : ""}</dd></div>
  );
}

const WORDS = { none: "faint", good: "good", ahead: "", risk: "wait", late: "bad" } as const;

function Deadline({ job }: { job: Job }) {
  const { kind, text } = inTime(job, now.value);
  return (
    <div><dt>Deadline</dt><dd class={WORDS[kind]}>{text}{kind === "risk" && ", will be late"}</dd>
      <dd class="note faint">{absolute(job.soft_deadline)}</dd></div>
  );
}
