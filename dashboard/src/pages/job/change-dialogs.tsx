import { useId, useState } from "preact/hooks";

import { patch } from "../../api/client";
import type { Job } from "../../api/jobs";
import { absolute, money } from "../../format";
import { announce } from "../../parts/announcer";
import { Confirm } from "../../parts/dialog";
import type { DialogProps } from "./actions";
import { limitChange, limitTexts, quoted, type LimitTexts } from "./changes";

function change(job: Job, body: unknown, said: string, changed: () => void): () => Promise<void> {
  return async () => {
    await patch(`v1/jobs/${encodeURIComponent(job.id)}`, body);
    announce(said);
    changed();
  };
}

const SOON = ["1h", "6h", "12h", "1d", "3d"];

export function DeadlineDialog({ job, onClose, changed }: DialogProps) {
  const [text, setText] = useState("");
  const field = useId();
  const given = text.trim();
  return (
    <Confirm title="Change the deadline" act="Change" ready={given !== ""} onClose={onClose}
      command={`allpass set ${job.id} --deadline ${given ? quoted(given) : "6h"}`}
      onAct={change(job, { soft_deadline: given }, "The deadline is changed", changed)}>
      <p>It is {absolute(job.soft_deadline)}. A nearer one may cost more, a later one may cost less: the job is not stopped by it.</p>
      <label for={field}>From now</label>
      <input id={field} value={text} autofocus placeholder="6h, 90m, 1d12h, or 2026-12-01T18:00:00Z" aria-describedby={`${field}-help`}
        onInput={(event) => setText(event.currentTarget.value)} />
      <p id={`${field}-help`} class="choices">
        {SOON.map((one) => <button key={one} type="button" class="small" aria-pressed={given === one} onClick={() => setText(one)}>{one}</button>)}
      </p>
    </Confirm>
  );
}

const FIELDS: readonly { name: keyof LimitTexts; label: string; hint: string }[] = [
  { name: "max_cost", label: "Most it may cost, in dollars", hint: "then it saves and pauses" },
  { name: "max_hourly", label: "Most its next GPUs may cost per hour, in dollars", hint: "while nothing is to be had for that, it waits" },
  { name: "max_duration", label: "Longest from its first step", hint: "8h, 90m; then it is cancelled" },
  { name: "max_wait", label: "Longest wait for its first place", hint: "2h, 30m; then it starts at any price that is allowed" },
];

export function LimitsDialog({ job, onClose, changed }: DialogProps) {
  const [before] = useState(() => limitTexts(job));
  const [now, setNow] = useState(before);
  const { body, wrong, command } = limitChange(job.id, before, now);
  return (
    <Confirm title="Change the limits" act="Change" ready={!wrong.length && Object.keys(body).length > 0} command={command} onClose={onClose}
      onAct={change(job, body, "The limits are changed", changed)}>
      <p class="faint">It has cost {money(job.cost)} so far. An empty field is no limit.</p>
      {FIELDS.map((field, at) => (
        <Field key={field.name} {...field} first={at === 0} value={now[field.name]} wrong={wrong.includes(field.name)} set={(text) => setNow({ ...now, [field.name]: text })} />
      ))}
    </Confirm>
  );
}

interface FieldProps {
  label: string;
  hint: string;
  value: string;
  wrong: boolean;
  first: boolean;
  set: (text: string) => void;
}

function Field({ label, hint, value, wrong, first, set }: FieldProps) {
  const id = useId();
  return (
    <>
      <label for={id}>{label}</label>
      <input id={id} value={value} autofocus={first} placeholder="no limit" aria-invalid={wrong} aria-describedby={`${id}-hint`} onInput={(event) => set(event.currentTarget.value)} />
      <small id={`${id}-hint`} class={wrong ? "bad" : "faint"}>{wrong ? `not understood: ${hint}` : hint}</small>
    </>
  );
}
