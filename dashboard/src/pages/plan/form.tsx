import { useEffect, useId, useState } from "preact/hooks";

import { Note, SelectField, TextField } from "../settings/field";
import { CHOICES, hasAdapters, MODELS, requestOf, isWhole, type Fields } from "./request";

interface PlanFormProps {
  given: Fields;
  config: string;
  wrong: Partial<Record<string, string>>; // by field, of what was asked
  ask: (fields: Fields, config: string) => void;
}

export function PlanForm({ given, config, wrong, ask }: PlanFormProps) {
  const [fields, setFields] = useState(given);
  const [text, setText] = useState(config);
  useEffect(() => setFields(given), [JSON.stringify(given)]); // one has gone back to another question
  const now = requestOf(fields, text);
  const told = (name: keyof Fields) => now.wrong[name] ?? (fields[name] === given[name] ? wrong[name] : null) ?? null;
  const set = (name: keyof Fields) => (value: string) => setFields((before) => ({ ...before, [name]: value }));
  const submit = (event: Event) => {
    event.preventDefault();
    if (isWhole(now)) ask(fields, text);
  };
  const shared = { fields, set, told };
  return (
    <form class="plan-form" onSubmit={submit}>
      <div class="plan-fields">
        <ModelField value={fields.model} set={set("model")} wrong={text.trim() ? null : told("model")} />
        <Choice {...shared} name="method" label="Method" />
        <div><TextField numeric label="Batch" hint="sequences in a step, over all GPUs" value={fields.batch} set={set("batch")} wrong={told("batch")} /></div>
        <div><TextField numeric label="Sequence" hint="tokens in each" value={fields.sequence} set={set("sequence")} wrong={told("sequence")} /></div>
        <div><TextField numeric label="Steps" placeholder="1000" hint="in all" value={fields.steps} set={set("steps")} wrong={told("steps")} /></div>
        <div><TextField numeric label="Machines" placeholder="as few as it takes" hint="at once" value={fields.nodes} set={set("nodes")} wrong={told("nodes")} /></div>
        <div><TextField label="Deadline" placeholder="none" hint="6h, 90m, or an instant" value={fields.deadline} set={set("deadline")} wrong={told("deadline")} /></div>
      </div>
      <Training {...shared} open={TRAINED.some((name) => wrong[name])} recompute={(checkpointing) => setFields({ ...fields, checkpointing })} />
      <ConfigField text={text} set={setText} wrong={now.wrong.config ?? (text === config ? wrong.config : null) ?? null} />
      <button type="submit" class="primary" disabled={!isWhole(now)}>Plan</button>
    </form>
  );
}

interface Shared {
  fields: Fields;
  set: (name: keyof Fields) => (value: string) => void;
  told: (name: keyof Fields) => string | null;
}

function Choice({ fields, set, told, name, label }: Shared & { name: keyof typeof CHOICES; label: string }) {
  return <div><SelectField label={label} value={fields[name]} set={set(name)} wrong={told(name)} options={CHOICES[name].map((one) => ({ value: one, text: one }))} /></div>;
}

const TRAINED = ["precision", "optimizer", "rank", "loss"] as const;

function Training({ open, recompute, ...shared }: Shared & { open: boolean; recompute: (on: boolean) => void }) {
  const { fields, set, told } = shared;
  return (
    <details class="plan-more" open={open}>
      <summary>How it is trained</summary>
      <div class="plan-fields">
        <Choice {...shared} name="precision" label="Precision" />
        <Choice {...shared} name="optimizer" label="Optimizer" />
        <Choice {...shared} name="loss" label="Loss" />
        {hasAdapters(fields.method) && <div><TextField numeric label="Rank" placeholder="16" hint="of the adapters" value={fields.rank} set={set("rank")} wrong={told("rank")} /></div>}
      </div>
      <label class="check"><input type="checkbox" checked={fields.checkpointing} onChange={(event) => recompute(event.currentTarget.checked)} /> Recompute activations in any case</label>
    </details>
  );
}

function ModelField({ value, set, wrong }: { value: string; set: (text: string) => void; wrong: string | null }) {
  const id = useId();
  return (
    <div>
      <label for={id}>Model</label>
      <input id={id} value={value} list={`${id}-known`} placeholder="llama-3-8b" autocomplete="off" spellcheck={false} aria-invalid={wrong !== null} aria-describedby={`${id}-note`}
        onInput={(event) => set(event.currentTarget.value)} />
      <datalist id={`${id}-known`}>{MODELS.map((one) => <option key={one} value={one} />)}</datalist>
      <Note id={`${id}-note`} hint="of the table, or as the hub calls it" wrong={wrong} />
    </div>
  );
}

function ConfigField({ text, set, wrong }: { text: string; set: (text: string) => void; wrong: string | null }) {
  const id = useId();
  return (
    <details class="plan-more" open={wrong !== null}>
      <summary>A model of your own</summary>
      <label for={id}>Its config.json</label>
      <textarea id={id} class="mono" rows={6} value={text} spellcheck={false} placeholder={'{"model_type": "llama", "hidden_size": 4096, …}'} aria-invalid={wrong !== null} aria-describedby={`${id}-note`}
        onInput={(event) => set(event.currentTarget.value)} />
      <Note id={`${id}-note`} hint="in place of the model's name; it is not part of the address" wrong={wrong} />
    </details>
  );
}
