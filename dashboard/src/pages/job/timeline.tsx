import { isOver, type Job } from "../../api/jobs";
import { absolute, duration, hourly } from "../../format";
import { gpus } from "../../parts/place";
import { now } from "../../parts/time";
import type { Mark, Story, Stretch } from "./story";
import { layoutOf, type Bar, type Lane, type Layout } from "./timeline-layout";
import "./timeline.css";

/** One axis of time, and a lane for each kind of place. The table below it says the same in words. */
export function TimelineView({ job, story }: { job: Job; story: Story }) {
  const layout = layoutOf(story, {
    over: isOver(job),
    finish: job.estimated_finish_at ? Date.parse(job.estimated_finish_at) : null,
    deadline: Date.parse(job.soft_deadline),
  });
  return (
    <div class="timeline" aria-hidden="true">
      <div class="timeline-names">{layout.lanes.map((lane) => <span key={lane.name} class={`tier ${lane.name}`}>{lane.name}</span>)}</div>
      <div class="timeline-field">
        {layout.ticks.map((tick) => <i key={tick.left} class="timeline-tick" style={{ left: `${tick.left}%` }}><span>{tick.text}</span></i>)}
        {layout.lanes.map((lane) => <LaneView key={lane.name} lane={lane} />)}
        <Marks marks={layout.marks} />
        <Lines layout={layout} job={job} />
      </div>
      <div class="timeline-legend faint">
        {layout.lanes.some((lane) => lane.name !== "waiting") && <><span><i class="timeline-key boot" /> starts</span><span><i class="timeline-key run" /> runs</span></>}
        {KINDS.filter((kind) => layout.marks.some((mark) => mark.kind === kind)).map((kind) => <span key={kind}><i class={`timeline-mark ${kind}`} /> {kind}</span>)}
        {layout.beyond.map((text) => <span key={text} class="timeline-beyond">{text} →</span>)}
      </div>
    </div>
  );
}

const KINDS: readonly Mark["kind"][] = ["checkpoint", "move", "restart", "fault"];

function LaneView({ lane }: { lane: Lane }) {
  return (
    <div class={`timeline-lane ${lane.name}`}>
      {lane.bars.map((bar, at) => <BarView key={at} bar={bar} />)}
    </div>
  );
}

function BarView({ bar: { stretch, left, width } }: { bar: Bar }) {
  const tier = stretch.stay?.tier ?? "";
  return (
    <div class={`timeline-bar ${stretch.kind} ${tier} ${stretch.open ? "open" : ""}`} title={inWords(stretch)} style={{ left: `${left}%`, width: `${width}%` }}>
      {width > 9 && <span>{label(stretch)}</span>}
    </div>
  );
}

function label({ kind, stay, from, to }: Stretch): string {
  if (kind === "run" && stay) return gpus(stay.gpu_type, stay.gpu_count);
  return duration(to - from);
}

function inWords({ kind, stay, from, to, why }: Stretch): string {
  const time = `${duration(to - from)}, from ${absolute(from)}`;
  if (!stay) return `${kind === "paused" ? "Paused" : "Waited"} ${time}: ${why}`;
  const place = `${stay.tier}, ${stay.provider} ${gpus(stay.gpu_type, stay.gpu_count)} at ${hourly(stay.price_per_hour)}`;
  return `${kind === "boot" ? "Started" : "Ran"} on ${place}: ${time}`;
}

function Marks({ marks }: { marks: Layout["marks"] }) {
  return (
    <div class="timeline-marks">
      {marks.map((mark, at) => <i key={at} class={`timeline-mark ${mark.kind}`} style={{ left: `${mark.left}%` }} title={`${absolute(mark.at)}: ${mark.text}`} />)}
    </div>
  );
}

function Lines({ layout, job }: { layout: Layout; job: Job }) {
  const late = job.estimated_finish_at !== null && job.estimated_finish_at > job.soft_deadline;
  return (
    <>
      {layout.now !== null && <i class="timeline-line now" title={`now, ${absolute(now.value)}`} style={{ left: `${layout.now}%` }} />}
      {layout.finish && <i class="timeline-line finish" title="expected end" style={{ left: `${layout.finish.left}%` }}><span>done</span></i>}
      {layout.deadline && (
        <i class={`timeline-line deadline ${late ? "late" : ""}`} title={`deadline, ${absolute(job.soft_deadline)}`} style={{ left: `${layout.deadline.left}%` }}>
          <span>deadline</span>
        </i>
      )}
    </>
  );
}
