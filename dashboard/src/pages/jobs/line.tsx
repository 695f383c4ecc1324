import type { ComponentChildren } from "preact";

import type { JobLine } from "../../api/jobs";
import { money } from "../../format";
import { ClassMark } from "../../parts/class-mark";
import { Status } from "../../parts/status";
import { now } from "../../parts/time";
import { href } from "../../route";
import { Deadline, DeadlineCell, DoneCell, DoneIn, LossCell, Progress, SpentCell, StepsCell, WhereCell, WhereLine } from "./cells";
import { inTime, instead, steps } from "./facts";
import type { Layout } from "./layout";
import { memo } from "./memo";

export interface LineProps {
  job: JobLine;
  layout: Layout;
  inside: boolean;
  selected: boolean;
  left: boolean;
  index: number;
  onOpen: (id: string) => void;
}

/** One job, as a row or, where there is little room, as a card. */
export const Line = memo(function Line({ job, layout, inside, selected, left, index, onOpen }: LineProps) {
  const kind = `line ${layout} ${inside ? "inside" : ""} ${left ? "left" : ""}`;
  const click = (event: MouseEvent) => {
    if (!(event.target as Element).closest("a")) onOpen(job.id);
  };
  return (
    <div id={`row-${job.id}`} class={kind} role="row" aria-rowindex={index + 2} aria-selected={selected} onClick={click}>
      {layout === "wide" ? <Wide job={job} /> : layout === "middle" ? <Middle job={job} /> : <Card job={job} />}
    </div>
  );
});

function Wide({ job }: { job: JobLine }) {
  return (
    <>
      <Cell><div class="cell two"><Status status={job.status} title={instead(job)} /><Troubles job={job} /></div></Cell>
      <Cell><div class="cell two"><Name job={job} /><Beside job={job} /></div></Cell>
      <Cell><WhereCell job={job} /></Cell>
      <Cell><StepsCell job={job} /></Cell>
      <Cell><LossCell job={job} /></Cell>
      <Cell><DoneCell job={job} /></Cell>
      <Cell><DeadlineCell job={job} /></Cell>
      <Cell><SpentCell cost={job.cost} saved={job.saved} /></Cell>
    </>
  );
}

function Middle({ job }: { job: JobLine }) {
  return (
    <>
      <Cell><Status status={job.status} title={instead(job)} /></Cell>
      <Cell><div class="cell two"><Name job={job} /><WhereLine job={job} /></div></Cell>
      <Cell><StepsCell job={job} /></Cell>
      <Cell><LossCell job={job} width={64} value={false} /></Cell>
      <Cell><div class="cell two number"><DoneIn job={job} /><Late job={job} /></div></Cell>
      <Cell><SpentCell cost={job.cost} saved={job.saved} /></Cell>
    </>
  );
}

function Card({ job }: { job: JobLine }) {
  return (
    <div class="card" role="gridcell">
      <div class="between"><Status status={job.status} /><span class="number">{money(job.cost)}</span></div>
      <div class="between">
        <div class="card-words"><Name job={job} /><WhereLine job={job} /></div>
        {job.losses.length > 1 && <LossCell job={job} width={64} value={false} />}
      </div>
      <Progress step={job.step} total={job.total_steps} kind={job.status} />
      <div class="between faint">
        <span class="number">{steps(job.step, job.total_steps)}</span>
        <span class="beside"><Late job={job} />{job.estimated_finish_at && !job.ended_at && <DoneIn job={job} more=" to go" />}</span>
      </div>
    </div>
  );
}

/** The deadline only where there is something to say of it. */
function Late({ job }: { job: JobLine }) {
  const { kind } = inTime(job, now.value);
  if (kind === "late") return <Deadline job={job} />;
  return kind === "risk" ? <span class="wait">will be late</span> : null;
}

function Cell({ children }: { children: ComponentChildren }) {
  return <div role="gridcell">{children}</div>;
}

export function Name({ job }: { job: JobLine }) {
  return <a class="cut name" href={href("jobs", job.id)} tabIndex={-1} title={`${job.name} (${job.id})`}>{job.name}</a>;
}

function Beside({ job }: { job: JobLine }) {
  const labels = Object.entries(job.labels);
  return (
    <span class="cut faint" title={[job.app_name, ...labels.map(([name, value]) => `${name}:${value}`)].join(", ")}>
      <ClassMark of={job.priority_class ?? ""} spotOnly />{job.app_name}{labels.map(([name, value]) => <span key={name} class="label">{name}:{value}</span>)}
    </span>
  );
}

/** Moves and faults, where there were any: how lively its way has been. */
function Troubles({ job }: { job: JobLine }) {
  const told = [job.moves && `${job.moves}× moved`, job.faults && `${job.faults}× lost`].filter(Boolean).join(", ");
  return told ? <span class={job.faults ? "wait" : "faint"} title={`${job.moves} planned moves, ${job.faults} faults`}>{told}</span> : null;
}
