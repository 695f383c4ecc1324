import type { Budget } from "../../api/costs";
import { money } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Time } from "../../parts/time";

const STATES: Record<string, string> = { open: "good", near: "wait", used_up: "bad" };

/** The most that is spent in each period, and how much of it is. */
export function Budgets({ budgets }: { budgets: readonly Budget[] }) {
  if (!budgets.length) return <Empty title="No budget is set."><p><Command text="allpass budget set --period month --amount 200" /></p></Empty>;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Budgets, one by one">
      <table>
        <thead><tr><th>Budget</th><th>Spent</th><th class="number">spent</th><th class="number">of</th><th class="number">foreseen</th><th>State</th><th>Begins anew</th></tr></thead>
        <tbody>{budgets.map((budget) => <Row key={budget.id} budget={budget} />)}</tbody>
      </table>
    </div>
  );
}

function Row({ budget }: { budget: Budget }) {
  const share = budget.amount > 0 ? Math.min(1, budget.spent / budget.amount) : 1;
  const of = [budget.scope === "installation" && "all projects", budget.provider, budget.key_id && `key ${budget.key_id}`].filter(Boolean).join(", ");
  return (
    <tr>
      <td>each {budget.period}{of && <span class="faint"> {of}</span>}</td>
      <td><div class={`bar-share ${budget.state}`}><i style={{ width: `${share * 100}%` }} /></div></td>
      <td class="number">{money(budget.spent)}</td><td class="number">{money(budget.amount)}</td><td class="number">{money(budget.foreseen)}</td>
      <td class={STATES[budget.state] ?? ""}>{budget.state.replace("_", " ")}</td><td><Time at={budget.ends_at} /></td>
    </tr>
  );
}
