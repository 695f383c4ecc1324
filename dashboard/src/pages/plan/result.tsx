import { useState } from "preact/hooks";

import { tierColumns } from "../../api/jobs";
import { bytes, count, hourly, plural } from "../../format";
import { Empty } from "../../parts/empty";
import { gpus } from "../../parts/place";
import { href, route } from "../../route";
import { SeveralMachines } from "./machines";
import { OptionRow } from "./option-row";
import { parted, size } from "./options";
import { changed, fieldsOf, inAddress } from "./request";
import type { Plan, PlanOption, PlanRemedy } from "./shapes";

export function Result({ plan }: { plan: Plan }) {
  const [all, setAll] = useState(false);
  const { hold, small } = parted(plan.options);
  const shown = all || !hold.length ? [...hold, ...small] : hold;
  return (
    <section aria-label="The plan" class="plan-result">
      <p class="headline">{plan.nodes === null ? plan.reason : plan.machines_reason ?? plan.reason}</p>
      <p class="faint">
        {plan.model}, {size(plan.parameters)} parameters, {plan.method}: a single GPU with {bytes(plan.one_gpu_bytes)} is enough.
        {plan.host_bytes !== null && ` Its machine needs ${bytes(plan.host_bytes)} beside.`} Times and costs are for {plural(plan.steps, "step")}; assumed are {plan.profile}.
      </p>
      {plan.remedies.length > 0 && <Remedies list={plan.remedies} />}
      {plan.machines_reason !== null && <SeveralMachines plan={plan} />}
      {plan.nodes !== null ? null : plan.options.length ? <Table rows={shown} chosen={plan.chosen} /> : <Empty title="Nothing is offered right now."><p>As soon as a provider lists an offer, it stands here.</p></Empty>}
      {hold.length > 0 && small.length > 0 && <p><button type="button" aria-expanded={all} onClick={() => setAll(!all)}>{all ? "Hide" : "Show"} {count(small.length)} that are too small</button></p>}
    </section>
  );
}

function Table({ rows, chosen }: { rows: readonly [PlanOption, number][]; chosen: number | null }) {
  const tiers = tierColumns(rows.some(([{ offers }]) => offers.some(({ tier }) => tier === "own")));
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="What fits">
      <table class="plan-table">
        <thead><tr><th>GPUs</th><th>Memory of each</th><th class="number">A step</th>{tiers.map((tier) => <th key={tier} class="number"><span class={`tier ${tier}`}>{tier}</span></th>)}<th>Layout</th></tr></thead>
        <tbody>{rows.map(([option, at]) => <OptionRow key={at} option={option} chosen={at === chosen} tiers={tiers} />)}</tbody>
      </table>
    </div>
  );
}

function Remedies({ list }: { list: readonly PlanRemedy[] }) {
  return (
    <>
      <h2>What would make it fit</h2>
      <ul class="planned">
        {list.map((one, at) => (
          <li key={at}>
            <b class="mono">{one.changes.join(", ")}</b> <span class="whole">on {gpus(one.gpu_type, one.gpu_count)}</span> <span class="faint whole">{hourly(one.price_per_hour)}</span>
            <span class="planned-why">{one.message}</span>
            <Ask changes={one.changes} />
          </li>
        ))}
      </ul>
    </>
  );
}

/** The same question with these changes. A model that is given by its config is not in the address, and stays in the form. */
function Ask({ changes }: { changes: readonly string[] }) {
  const next = changed(fieldsOf(route.value.query), changes);
  return next && <a class="small-text" href={href("plan", null, null, inAddress(next))}>Plan it so</a>;
}
