import { KINDS } from "../../parts/status";
import { figures } from "../../parts/chart-data";
import { now } from "../../parts/time";
import { absolute, duration, money, percent, plural } from "../../format";
import { href } from "../../route";
import { Progress, SpentCell } from "./cells";
import { share } from "./facts";
import { countsInWords, type SweepLine } from "./folding";
import type { Layout } from "./layout";

export interface SweepRowProps {
  sweep: SweepLine;
  layout: Layout;
  selected: boolean;
  index: number;
  onToggle: (id: string) => void;
}

/** The heading of a sweep: all its jobs in one line, which opens. */
export function SweepRow({ sweep, layout, selected, index, onToggle }: SweepRowProps) {
  const click = (event: MouseEvent) => {
    if (!(event.target as Element).closest("a")) onToggle(sweep.id);
  };
  return (
    <div id={`row-${sweep.id}`} class={`line sweep ${layout}`} role="row" aria-rowindex={index + 2} aria-selected={selected}
      aria-expanded={sweep.open} onClick={click}>
      {layout === "cards" ? <Card sweep={sweep} /> : <Cells sweep={sweep} layout={layout} />}
    </div>
  );
}

function Cells({ sweep, layout }: { sweep: SweepLine; layout: Layout }) {
  const finish = sweep.finish ? duration(Math.max(0, Date.parse(sweep.finish) - now.value)) : "–";
  return (
    <>
      <div role="gridcell" class="cell two"><Turn sweep={sweep} /><Shares sweep={sweep} /></div>
      <div role="gridcell" class="cell two"><Name sweep={sweep} /><span class="cut faint">{countsInWords(sweep.counts)}</span></div>
      {layout === "wide" && <div role="gridcell" class="cell two faint"><span class="cut">{sweep.app_name}</span></div>}
      <div role="gridcell" class="cell two">
        <span class="number">{sweep.over} / {sweep.jobs} jobs</span>
        <Bar sweep={sweep} />
      </div>
      <div role="gridcell" class="cell loss">
        {layout === "wide" && sweep.bestLoss !== null && <span class="faint">best</span>}
        <span class="number">{figures(sweep.bestLoss)}</span>
      </div>
      <div role="gridcell" class="cell two number"><span title={sweep.finish ? absolute(sweep.finish) : undefined}>{finish}</span></div>
      {layout === "wide" && <div role="gridcell" class="cell two number faint"><span title={absolute(sweep.deadline)}>{nextDeadline(sweep)}</span></div>}
      <div role="gridcell"><SpentCell cost={sweep.cost} saved={sweep.saved} /></div>
    </>
  );
}

function Card({ sweep }: { sweep: SweepLine }) {
  return (
    <div class="card" role="gridcell">
      <div class="between"><Turn sweep={sweep} /><span class="number">{money(sweep.cost)}</span></div>
      <Name sweep={sweep} />
      <span class="cut faint">{countsInWords(sweep.counts)}</span>
      <Bar sweep={sweep} />
      <div class="between faint"><span class="number">{sweep.over} / {sweep.jobs} jobs over</span>
        {sweep.bestLoss !== null && <span>best loss {figures(sweep.bestLoss)}</span>}</div>
    </div>
  );
}

function Turn({ sweep }: { sweep: SweepLine }) {
  return <span class="turn"><i aria-hidden="true">{sweep.open ? "▾" : "▸"}</i> {plural(sweep.jobs, "job")}{sweep.more ? "+" : ""}</span>;
}

function Name({ sweep }: { sweep: SweepLine }) {
  return (
    <span class="cut">
      <span class="faint">Sweep </span>
      <a class="name" tabIndex={-1} href={href("jobs", null, null, { sweep_id: sweep.id })} title={`Only this sweep (${sweep.id})`}>{sweep.name}</a>
    </span>
  );
}

/** How many of its jobs are how, as one bar. */
function Shares({ sweep }: { sweep: SweepLine }) {
  return (
    <span class="shares" role="img" aria-label={countsInWords(sweep.counts)} title={countsInWords(sweep.counts)}>
      {Object.entries(sweep.counts).map(([status, count]) => (
        <i key={status} class={`share ${KINDS[status] ?? "over"}`} style={{ flexGrow: String(count) }} />
      ))}
    </span>
  );
}

/** By steps; by jobs where the steps of one are not known. */
function Bar({ sweep }: { sweep: SweepLine }) {
  const known = sweep.total_steps !== null;
  return <Progress step={known ? sweep.step : sweep.over} total={known ? sweep.total_steps : sweep.jobs} label={inSteps(sweep)} />;
}

function inSteps(sweep: SweepLine): string {
  const part = share(sweep.step, sweep.total_steps);
  return part === null ? `${sweep.step} steps` : `${percent(part)} of all steps`;
}

function nextDeadline(sweep: SweepLine): string {
  if (sweep.over === sweep.jobs) return "–";
  const left = Date.parse(sweep.deadline) - now.value;
  return left < 0 ? `late ${duration(left)}` : `${duration(left)} left`;
}
