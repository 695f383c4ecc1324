/** What may be spent in an hour, a day or a month, and how much of it is. */

import { all } from "../../api/client";
import { may } from "../../api/session";
import { money, percent } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { barOf, whatOf } from "./budget-bars";
import type { Budget } from "./shapes";

const ANEW_MS = 30_000;
const STATES: Record<Budget["state"], { kind: string; word: string }> = {
  open: { kind: "good", word: "open" }, near: { kind: "wait", word: "nearly used up" }, used_up: { kind: "bad", word: "used up" },
};
type Names = ReadonlyMap<string, string>;

export function Budgets() {
  const { value, error, again } = useReading("budgets", (signal) => all<Budget>("v1/budgets", { query: { limit: 1000 }, signal }), ANEW_MS);
  const names = useKeyNames(value?.some((one) => one.key_id) ?? false);
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading the budgets" />;
  if (!value.length) return <None />;
  return (
    <>
      {error && <p class="wait" role="status">Not up to date: {error.message}</p>}
      <ul class="budgets">{value.map((one) => <Bar key={one.id} budget={one} names={names} />)}</ul>
      <p><Command text="allpass budget set --period day --amount 20" /></p>
    </>
  );
}

/** Names of keys are told to admins only; to others a key is its id. */
function useKeyNames(wanted: boolean): Names {
  const ask = wanted && may("admin");
  const read = async (signal: AbortSignal) => (ask ? all<{ id: string; name: string }>("v1/keys", { query: { limit: 1000 }, signal }) : []);
  return new Map(useReading(`key names ${ask}`, read).value?.map((key) => [key.id, key.name]));
}

function Bar({ budget, names }: { budget: Budget; names: Names }) {
  const { spent, foreseen, most } = barOf(budget);
  const { kind, word } = STATES[budget.state];
  const what = whatOf(budget, budget.key_id && (names.get(budget.key_id) ?? budget.key_id));
  return (
    <li>
      <div class="between"><b class="cut" title={what}>{what}</b><span class={`status ${kind}`}>{word}</span></div>
      <div class={`budget-bar ${kind}`} role="meter" aria-label={what} aria-valuemin={0} aria-valuemax={budget.amount / 1e6} aria-valuenow={Math.min(budget.spent, budget.amount) / 1e6}
        aria-valuetext={`${money(budget.spent)} of ${money(budget.amount)}`}>
        <i class="foreseen" style={{ width: `${100 * foreseen}%` }} /><i class="spent" style={{ width: `${100 * spent}%` }} />
        {most < 1 && <i class="limit" style={{ left: `${100 * most}%` }} />}
      </div>
      <div class="between small-text">
        <span class="number">{money(budget.spent)} of {money(budget.amount)}{budget.amount > 0 && <span class="faint"> ({percent(budget.spent / budget.amount)})</span>}</span>
        <span class={budget.foreseen > budget.amount ? "bad" : "faint"} title="If all that is rented now stays until the period ends">{money(budget.foreseen)} foreseen</span>
      </div>
      <div class="faint small-text">begins anew <Time at={budget.ends_at} />{budget.state === "used_up" && "; until then its jobs are paused, or wait"}</div>
    </li>
  );
}

function None() {
  return (
    <Empty title="No budgets">
      <p>Nothing bounds what is spent in an hour, a day or a month. To set a bound:</p>
      <p><Command text="allpass budget set --period month --amount 500" /></p>
    </Empty>
  );
}
