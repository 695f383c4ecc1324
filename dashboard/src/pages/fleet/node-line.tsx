import { count, hourly, money, duration, absolute, plural } from "../../format";
import { gpus as gpusText, Tier } from "../../parts/place";
import { now } from "../../parts/time";
import { href } from "../../route";
import type { Layout } from "../jobs/layout";
import { memo } from "../jobs/memo";
import { Mark } from "./mark";
import { isGone, type Gpus, type GroupRow, type Held, type NodeRow } from "./nodes";
import type { Node } from "./shapes";

const MOST_LINKS = 2; // as many as fit beside each other; the others follow in words

export const NodeLine = memo(function NodeLine({ row, layout, index, held }: { row: NodeRow; layout: Layout; index: number; held: Held }) {
  const { node, gpus, idlePerHour } = row;
  const cells = layout === "cards" ? <Card row={row} held={held} /> : (
    <>
      <div role="cell"><State node={node} /></div>
      <div role="cell" class="two">
        <span class="cut mono" title={node.id}>{node.id}</span>
        <span class="cut faint">{layout === "wide" ? node.region || "region not told" : gpusText(node.gpu_type, node.gpu_count)}</span>
      </div>
      {layout === "wide" && <div role="cell" class="cut" title={memoryOf(node)}>{gpusText(node.gpu_type, node.gpu_count)}</div>}
      <div role="cell" class="number"><Busy gpus={gpus} node={node} /></div>
      <div role="cell" class="two number"><span>{hourly(node.price_per_hour)}</span>{idlePerHour > 0 && <span class="wait">{money(idlePerHour)} idle</span>}</div>
      <div role="cell" class="number"><Age node={node} /></div>
      {layout === "wide" && <div role="cell" class="number">{money(node.cost)}</div>}
      <div role="cell"><Told node={node} held={held} /></div>
    </>
  );
  return <div class={`node-line ${layout}`} role="row" aria-rowindex={index + 2}>{cells}</div>;
});

function Card({ row: { node, gpus, idlePerHour }, held }: { row: NodeRow; held: Held }) {
  return (
    <div role="cell" class="card">
      <div class="between"><State node={node} /><span class="number">{hourly(node.price_per_hour)}</span></div>
      <div class="between"><span class="cut mono">{node.id}</span>{idlePerHour > 0 && <span class="wait number">{money(idlePerHour)} idle</span>}</div>
      <div class="between faint"><span class="cut">{gpusText(node.gpu_type, node.gpu_count)} {node.region}</span><span class="number">{!isGone(node) && !gpus.coming && <><Busy gpus={gpus} node={node} /> busy · </>}<Age node={node} /></span></div>
      <Told node={node} held={held} />
    </div>
  );
}

const CHECKS = { failed: "a GPU fails its first calculation", unchecked: "its GPUs are not checked" } as const;

function State({ node }: { node: Node }) {
  const check = node.gpus_checked === "failed" || node.gpus_checked === "unchecked" ? CHECKS[node.gpus_checked] : null;
  return (
    <div class="two">
      <Mark word={node.state} />
      {check && <span class={`cut small-text ${node.gpus_checked === "failed" ? "bad" : "faint"}`} title={check}>{node.gpus_checked === "failed" ? "GPU failed" : "GPUs unchecked"}</span>}
    </div>
  );
}

function Busy({ gpus, node }: { gpus: Gpus; node: Node }) {
  if (isGone(node) || gpus.coming) return <span class="faint">–</span>;
  return <span title={gpus.most ? "how many of its GPUs the jobs hold is not known" : undefined}>{gpus.most && "≤ "}{gpus.busy} <span class="faint">of {node.gpu_count}</span></span>;
}

/** How long it is there, or was. */
function Age({ node }: { node: Node }) {
  const from = +new Date(node.ready_at ?? node.requested_at);
  const to = node.ended_at ? +new Date(node.ended_at) : now.value;
  const said = [`asked for ${absolute(node.requested_at)}`, node.ready_at && `ready ${absolute(node.ready_at)}`, node.ended_at && `ended ${absolute(node.ended_at)}`];
  return <time dateTime={node.ended_at ?? node.requested_at} title={said.filter(Boolean).join(", ")}>{duration(Math.max(0, to - from))}</time>;
}

/** The jobs on it, and what is wrong with it. */
function Told({ node, held }: { node: Node; held: Held }) {
  const more = node.job_ids.length - MOST_LINKS;
  const link = (id: string) => <a key={id} class="cut" href={href("jobs", id)} title={id}>{held.names.get(id) ?? id}</a>;
  return (
    <div class="two">
      {node.job_ids.length > 0 && (
        <span class="node-jobs">
          {node.job_ids.slice(0, MOST_LINKS).map(link)}
          {more > 0 && <span class="faint whole" title={node.job_ids.slice(MOST_LINKS).map((id) => held.names.get(id) ?? id).join("\n")}>and {count(more)} more</span>}
        </span>
      )}
      {node.message && <span class={`cut ${isGone(node) && node.state !== "failed" ? "faint" : "bad"}`} title={node.message}>{node.message}</span>}
      {!node.message && !node.job_ids.length && <span class="faint">{node.state === "ready" ? "no job" : "–"}</span>}
    </div>
  );
}

function memoryOf(node: Node): string {
  const link = node.download_mbps === null ? "" : `, link of ${count(Math.round(node.download_mbps))} Mbit/s`;
  return `${Math.round(node.gpu_memory_bytes / 2 ** 30)} GiB each${link}`;
}

interface GroupProps {
  group: GroupRow;
  layout: Layout;
  index: number;
  onToggle: (key: string) => void;
}

export function GroupLine({ group: { key, tier, provider, folded, sums }, layout, index, onToggle }: GroupProps) {
  const gone = sums.perHour === 0 && sums.busy + sums.free + sums.coming === 0;
  return (
    <div class={`node-line group ${layout}`} role="row" aria-rowindex={index + 2}>
      <div role="cell" class="group-head">
        <button type="button" class="quiet turn" aria-expanded={!folded} onClick={() => onToggle(key)}>
          <i aria-hidden="true">{folded ? "▸" : "▾"}</i> <Tier tier={tier} /> <span class="cut">{provider}</span>
        </button>
        <span class="group-sums">
          <span class="faint">{plural(sums.nodes, "machine")}, {plural(sums.gpus, "GPU")}{!gone && `: ${sums.most ? "≤ " : ""}${count(sums.busy)} busy, ${count(sums.free)} free`}</span>
          {!gone && <b class="number">{hourly(sums.perHour)}</b>}
          {sums.idlePerHour > 0 && <span class="wait number">{hourly(sums.idlePerHour)} idle</span>}
        </span>
      </div>
    </div>
  );
}
