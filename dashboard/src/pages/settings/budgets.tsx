import { useState } from "preact/hooks";

import { may } from "../../api/session";
import { money } from "../../format";
import { Empty } from "../../parts/empty";
import { Time } from "../../parts/time";
import { RemoveBudgetDialog, SetBudgetDialog } from "./budget-dialogs";
import { Meter } from "./meter";
import { isOwner } from "./scopes";
import { Read, Section, useKeyNames, useList } from "./section";
import type { Budget } from "./shapes";
import { STATES, whatCounts } from "./words";

const ANEW_MS = 10_000;

type Open = { kind: "set"; budget: Budget | null } | { kind: "remove"; budget: Budget };

export function Budgets() {
  const read = useList<Budget>("v1/budgets", ANEW_MS);
  const [open, setOpen] = useState<Open | null>(null);
  const close = () => setOpen(null);
  const nameOf = useKeyNames();
  const writes = may("admin");
  return (
    <Section title="Budgets" what="The most that is spent in an hour, a day or a month of UTC. When one is used up, the jobs that it covers save and pause, or wait, and go on by themselves in the next period."
      command="allpass budget" action={writes && <button type="button" onClick={() => setOpen({ kind: "set", budget: null })}>Set a budget …</button>}>
      <Read from={read} what="Reading the budgets">
        {(list) => (list.length ? <Table list={list} nameOf={nameOf} open={writes ? setOpen : null} />
          : <Empty title="No budget is set."><p>Without one, only the limits of jobs and of the installation hold what is spent.</p></Empty>)}
      </Read>
      {open?.kind === "set" && <SetBudgetDialog budget={open.budget} nameOf={nameOf} onClose={close} changed={read.again} />}
      {open?.kind === "remove" && <RemoveBudgetDialog budget={open.budget} nameOf={nameOf} onClose={close} changed={read.again} />}
    </Section>
  );
}

interface TableProps {
  list: readonly Budget[];
  nameOf: (id: string) => string;
  open: ((what: Open) => void) | null;
}

function Table({ list, nameOf, open }: TableProps) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Budgets">
      <table class="settings-table budget-table">
        <thead><tr><th>What counts</th><th>Per</th><th>Spent</th><th class="number">Left</th><th class="number">Foreseen</th><th>State</th><th class="number">Begins anew</th><th>Set by</th>{open && <th><span class="hidden">Change</span></th>}</tr></thead>
        <tbody>{list.map((one) => <Row key={one.id} budget={one} nameOf={nameOf} open={open} />)}</tbody>
      </table>
    </div>
  );
}

function Row({ budget, nameOf, open }: Omit<TableProps, "list"> & { budget: Budget }) {
  const state = STATES[budget.state];
  const changeable = open && (budget.scope === "project" || isOwner());
  const what = whatCounts(budget, nameOf);
  return (
    <tr>
      <th scope="row"><span class="named">{what}</span>{budget.scope === "installation" && <small class="faint"> of all projects</small>}</th>
      <td>{budget.period}</td>
      <td><Meter used={budget.spent} of={budget.amount} text={money} label="spent" foreseen={budget.foreseen} /></td>
      <td class="number">{money(budget.left)}</td>
      <td class={`number ${budget.foreseen > budget.amount ? "wait" : ""}`}>{money(budget.foreseen)}</td>
      <td><span class={`status ${state.kind}`}>{state.text}</span></td>
      <td class="number"><Time at={budget.ends_at} /></td>
      <td><span class="named">{nameOf(budget.set_by)}</span> <small class="faint"><Time at={budget.set_at} /></small></td>
      {open && (
        <td class="act">
          {changeable && <button type="button" class="small" aria-label={`Change the budget: ${what} per ${budget.period}`} onClick={() => open({ kind: "set", budget })}>Change …</button>}{" "}
          {changeable && <button type="button" class="small danger" aria-label={`Remove the budget: ${what} per ${budget.period}`} onClick={() => open({ kind: "remove", budget })}>Remove …</button>}
        </td>
      )}
    </tr>
  );
}
