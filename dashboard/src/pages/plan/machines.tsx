/** On several machines at once: a line for each kind of GPU at each site, and what its steps wait for. */

import { useState } from "preact/hooks";

import { count, duration, hourly, money, plural } from "../../format";
import { Empty } from "../../parts/empty";
import { gpus } from "../../parts/place";
import { MemoryBar, stepTime } from "./option-row";
import { layoutInWords, networkInWords, siteInWords, sourceInWords, switchesInWords, VERDICTS } from "./options";
import type { Plan, PlanMachines } from "./shapes";

const FIRST = 20;

export function SeveralMachines({ plan }: { plan: Plan }) {
  const [all, setAll] = useState(false);
  const { machines, chosen_machines, machines_reason, nodes } = plan;
  if (!machines.length) return nodes === null ? <p class="faint">{machines_reason}</p> : <Empty title="No machines of one private network are on offer."><p>{machines_reason}</p></Empty>;
  const rest = machines.length - FIRST;
  return (
    <>
      {nodes === null && <><h2>On several machines</h2><p>{machines_reason}</p></>}
      <div class="scroll" tabIndex={0} role="group" aria-label="Several machines">
        <table class="plan-table">
          <thead><tr><th>Machines</th><th>Memory of each GPU</th><th class="number">A step</th><th class="number">of it the network</th><th class="number">Cost</th><th>Where</th><th>Layout</th></tr></thead>
          <tbody>{machines.slice(0, all ? undefined : FIRST).map((one, at) => <MachinesRow key={at} one={one} chosen={at === chosen_machines} />)}</tbody>
        </table>
      </div>
      {rest > 0 && <p><button type="button" aria-expanded={all} onClick={() => setAll(!all)}>{all ? "Hide" : "Show"} {count(rest)} more</button></p>}
    </>
  );
}

function MachinesRow({ one, chosen }: { one: PlanMachines; chosen: boolean }) {
  const verdict = VERDICTS[one.verdict];
  const under = switchesInWords(one.switches);
  return (
    <tr class={chosen ? "chosen-row" : ""}>
      <th scope="row">
        <span class="whole">{count(one.nodes)} × {gpus(one.gpu_type, one.gpu_count)}</span>
        <small><span class={`status ${verdict.kind}`}>{verdict.text}</span>{chosen && <span class="faint"> would be rented</span>}</small>
      </th>
      <td><MemoryBar option={one} /></td>
      <td class="number">{one.step_ms === null ? "–" : stepTime(one.step_ms)}<small class="faint">{sourceInWords(one)}</small></td>
      <td class="number"><span class={one.network.is_slow ? "bad" : ""}>{stepTime(one.network.exchange_ms)}{one.network.is_slow && ", too slow"}</span><small class="faint">{networkInWords(one)}</small></td>
      <td class="number"><Cost one={one} /></td>
      <td>{siteInWords(one)}{one.why_not !== null && <span class="plan-line wait">not now: {one.why_not}</span>}{under && <span class="plan-line faint">{under}, entropy {one.entropy.toFixed(2)}</span>}</td>
      <td class="plan-layout">{layoutInWords(one.layout)}{one.runs_as === "script" && <span class="faint"> · by code of your own</span>}</td>
    </tr>
  );
}

/** Of all machines together. */
function Cost({ one }: { one: PlanMachines }) {
  if (one.price_per_hour === null) return <span class="faint" aria-label="they are not to be had now">–</span>;
  return (
    <>
      {one.cost === null ? hourly(one.price_per_hour) : <b>{money(one.cost)}</b>}
      {one.duration_ms !== null && <span class={`plan-line ${one.in_time === false ? "bad" : ""}`}>{duration(one.duration_ms)}{one.in_time === false && ", too late"}</span>}
      {one.cost !== null && <small class="faint">{hourly(one.price_per_hour)} for {plural(one.nodes, "machine")}</small>}
    </>
  );
}
