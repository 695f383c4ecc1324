import { useState } from "preact/hooks";

import { count, money, percent } from "../../format";
import { Tier } from "../../parts/place";
import { href } from "../../route";
import type { Grouping } from "./by-group";
import { gpuHours, payersOf, type Group } from "./groups";
import { PAYER_WORDS } from "./payers";
import type { Payer, Usage } from "./shapes";

const AT_ONCE = 50;
const HEADS: Record<Grouping, string> = { app: "App", job: "Job", label: "Value of the label", key: "API key that submitted", day: "Day (UTC)", provider: "Provider", tier: "Tier", size: "GPUs that a job had" };

interface Props {
  groups: readonly Group[];
  used: Usage;
  by: Grouping;
  label: string;
}

export function GroupTable({ groups, used, by, label }: Props) {
  const [most, setMost] = useState(AT_ONCE);
  const payers = payersOf(used);
  const highest = Math.max(...groups.map((one) => one.cost), 1);
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="What was spent">
        <table class="group-table">
          <thead>
            <tr>
              <th scope="col">{HEADS[by]}</th><th scope="col" class="bar-head"><span class="hidden">As a bar</span></th><th scope="col" class="number">Cost</th><th scope="col" class="number">Share</th>
              {payers.map((payer) => <th key={payer} scope="col" class="number" title={PAYER_WORDS[payer].what}>{PAYER_WORDS[payer].short}</th>)}
              <th scope="col" class="number">GPU hours</th>
            </tr>
          </thead>
          <tbody>{groups.slice(0, most).map((one) => <Row key={one.id} group={one} total={used.cost} highest={highest} payers={payers} by={by} label={label} />)}</tbody>
          <tfoot>
            {used.rest.lines > 0 && <tr class="faint"><th scope="row">{count(used.rest.lines)} more lines</th><td class="bar-cell" /><td class="number">{money(used.rest.cost)}</td><td class="number">{percent(used.rest.cost / used.cost)}</td><td colSpan={payers.length} /><td class="number">{gpuHours(used.rest.gpu_ms)}</td></tr>}
            <tr class="sum"><th scope="row">In all</th><td class="bar-cell" /><td class="number">{money(used.cost)}</td><td /><td colSpan={payers.length} /><td class="number">{gpuHours(used.gpu_ms)}</td></tr>
          </tfoot>
        </table>
      </div>
      {groups.length > most && <p><button type="button" onClick={() => setMost(Infinity)}>Show all {count(groups.length)}</button></p>}
    </>
  );
}

interface RowProps {
  group: Group;
  total: number;
  highest: number;
  payers: readonly Payer[];
  by: Grouping;
  label: string;
}

function Row({ group, total, highest, payers, by, label }: RowProps) {
  return (
    <tr>
      <th scope="row"><Name group={group} by={by} label={label} /></th>
      <td class="bar-cell" aria-hidden="true">
        <div class="stacked">{payers.map((payer) => group.shares[payer] > 0 && <i key={payer} class={`payer ${payer}`} style={{ width: `${(100 * group.shares[payer]) / highest}%` }} />)}</div>
      </td>
      <td class="number"><b>{money(group.cost)}</b></td>
      <td class="number">{total ? percent(group.cost / total) : "–"}</td>
      {payers.map((payer) => <td key={payer} class="number faint">{group.shares[payer] ? money(group.shares[payer]) : "–"}</td>)}
      <td class="number">{gpuHours(group.gpu_ms)}</td>
    </tr>
  );
}

/** What it is called, and the way to what stands behind it. */
function Name({ group, by, label }: { group: Group; by: Grouping; label: string }) {
  if (group.key === null) return <span class="faint">{group.name}</span>;
  if (by === "key") return <span class="cut" title={`${group.name} (${group.key})`}>{group.name}</span>;
  if (by === "size") return <>{group.key === "1" ? "1 GPU" : `${group.key} GPUs`}</>;
  if (by === "tier") return <a href={href("fleet", null, null, { tier: group.key })}><Tier tier={group.key} /></a>;
  return <a class="cut" href={linkOf(group.key, by, label)} title={group.name === group.key ? group.name : `${group.name} (${group.key})`}>{group.name}</a>;
}

function linkOf(key: string, by: Exclude<Grouping, "tier" | "key" | "size">, label: string): string {
  switch (by) {
    case "job": return href("jobs", key);
    case "app": return href("jobs", null, null, { app_id: key });
    case "label": return href("jobs", null, null, { label: `${label}:${key}` });
    case "day": return href("costs", null, null, { from: key, to: key, by: "job" });
    case "provider": return href("fleet", null, null, { provider: key });
  }
}
