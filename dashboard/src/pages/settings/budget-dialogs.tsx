import { useState } from "preact/hooks";

import { del, get, put } from "../../api/client";
import { money } from "../../format";
import { announce } from "../../parts/announcer";
import { Confirm } from "../../parts/dialog";
import { useReading } from "../../parts/reading";
import { SelectField, TextField } from "./field";
import { FormDialog, type Wrong } from "./form-dialog";
import { isOwner } from "./scopes";
import { useKeys } from "./section";
import { PERIODS, type Budget, type Period } from "./shapes";
import { amountOf, removeCommand, setCommand, whatCounts, type BudgetFields } from "./words";

interface DialogProps {
  nameOf: (id: string) => string;
  onClose: () => void;
  changed: () => void;
}

const NEW: BudgetFields = { scope: "project", key_id: null, provider: null, period: "day" };

/** `budget` null: a new one. Of one that is there only the amount changes: with another key or period it is another one. */
export function SetBudgetDialog({ budget, nameOf, onClose, changed }: DialogProps & { budget: Budget | null }) {
  const [fields, setFields] = useState<BudgetFields>(budget ?? NEW);
  const [amount, setAmount] = useState(budget ? String(budget.amount / 1e6) : "");
  const dollars = amountOf(amount);
  const { scope, key_id, provider, period } = fields;
  const act = async () => {
    await put("v1/budgets", { scope, key_id, provider, period, amount_usd: dollars });
    announce("The budget is set");
    changed();
  };
  return (
    <FormDialog title={budget ? "Change the budget" : "Set a budget"} act="Set it" fields={["scope", "key_id", "provider", "period", "amount_usd"]}
      command={setCommand(fields, dollars === null ? "" : String(dollars))} ready={dollars !== null} onAct={act} onClose={onClose}>
      {(wrong) => (
        <>
          {budget ? <p>{whatCounts(budget, nameOf)}, per {budget.period}: {money(budget.spent)} are spent in this one.</p> : <Identity fields={fields} set={setFields} wrong={wrong} />}
          <TextField first={budget !== null} numeric label={`Most in each ${period}, in dollars`} placeholder="20" value={amount} set={setAmount}
            hint="0: nothing may be spent" wrong={amount.trim() && dollars === null ? "an amount of at most 1,000,000: 20 or 12.50" : wrong("amount_usd")} />
          <p class="faint">From the next decision on. One for the same is replaced; where several cover a job, each of them holds.</p>
        </>
      )}
    </FormDialog>
  );
}

interface IdentityProps {
  fields: BudgetFields;
  set: (fields: BudgetFields) => void;
  wrong: Wrong;
}

function Identity({ fields, set, wrong }: IdentityProps) {
  const usable = useKeys().filter((one) => !one.revoked_at);
  const providers = useReading("provider names", (signal) => get<{ providers: { name: string }[] }>("v1/providers", { signal }));
  const all = fields.scope === "installation";
  const scopes = [{ value: "project", text: "this project" }, { value: "installation", text: "all projects together" }];
  return (
    <>
      {isOwner() && <SelectField label="Whose spending counts" value={fields.scope} options={scopes} wrong={wrong("scope")}
        set={(value) => set(value === "installation" ? { ...fields, scope: value, key_id: null } : { ...fields, scope: "project" })} />}
      <SelectField label="Of which jobs" value={fields.key_id ?? ""} disabled={all} wrong={wrong("key_id")} set={(value) => set({ ...fields, key_id: value || null })}
        options={[{ value: "", text: "all" }, ...usable.map((one) => ({ value: one.id, text: `submitted with ${one.name}` }))]} />
      <SelectField label="At which provider" value={fields.provider ?? ""} wrong={wrong("provider")} set={(value) => set({ ...fields, provider: value || null })}
        options={[{ value: "", text: "at all of them" }, ...(providers.value?.providers ?? []).map(({ name }) => ({ value: name, text: name }))]} />
      <SelectField label="Per" value={fields.period} wrong={wrong("period")} hint="of UTC; a month is one of the calendar" set={(value) => set({ ...fields, period: value as Period })}
        options={PERIODS.map((one) => ({ value: one, text: one }))} />
    </>
  );
}

export function RemoveBudgetDialog({ budget, nameOf, onClose, changed }: DialogProps & { budget: Budget }) {
  const act = async () => {
    await del(`v1/budgets/${encodeURIComponent(budget.id)}`);
    announce("The budget is removed");
    changed();
  };
  return (
    <Confirm title="Remove this budget?" act="Remove it" danger command={removeCommand(budget)} onAct={act} onClose={onClose}>
      <p><b>{whatCounts(budget, nameOf)}</b>: {money(budget.amount)} per {budget.period}{budget.scope === "installation" && ", over all projects"}</p>
      <p>{budget.state === "used_up" ? "It is used up: jobs that it alone has held go on by themselves, and cost money again." : "From the next decision on it no longer holds what is spent."}</p>
    </Confirm>
  );
}
