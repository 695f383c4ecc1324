import { useId, useState } from "preact/hooks";

import { del, put } from "../../api/client";
import { plural } from "../../format";
import { announce } from "../../parts/announcer";
import { Confirm } from "../../parts/dialog";
import { Note, TextField } from "./field";
import { FormDialog } from "./form-dialog";
import type { Secret } from "./shapes";
import { secretNameProblem, secretValue, SHORTEST_SECRET } from "./words";

interface SetProps {
  known: readonly Secret[];
  replaced: Secret | null; // null: the name is asked for, too
  onClose: () => void;
  changed: () => void;
}

export function SetSecretDialog({ known, replaced, onClose, changed }: SetProps) {
  const [name, setName] = useState(replaced?.name ?? "");
  const [text, setText] = useState("");
  const value = secretValue(text);
  const problem = secretNameProblem(name);
  const before = known.find((one) => one.name === name);
  const act = async () => {
    await put(`v1/secrets/${encodeURIComponent(name)}`, { value });
    announce(`${name} is ${before ? "replaced" : "kept"}`);
    changed();
  };
  return (
    <FormDialog title={replaced ? `Replace ${replaced.name}` : "Set a secret"} act={before ? "Replace it" : "Keep it"} fields={["name", "value"]} command={`allpass secret set ${name && !problem ? name : "NAME"}`}
      ready={name !== "" && !problem && value.length >= SHORTEST_SECRET} onAct={act} onClose={onClose}>
      {(wrong) => (
        <>
          {!replaced && <TextField first label="Name" placeholder="HF_TOKEN" hint="as the script finds it in its environment" value={name} set={(typed) => setName(typed.trim())} wrong={problem ?? wrong("name")} />}
          <ValueField text={text} set={setText} wrong={wrong("value")} first={replaced !== null} />
          <p class="faint">{before ? `It takes the place of the value that is there. ${plural(before.used_by_jobs, "unfinished job names", "unfinished jobs name")} it: runs that start later have the new one.` : "It is encrypted, and no request ever reads it again."}</p>
        </>
      )}
    </FormDialog>
  );
}

/** Of several lines where need be, and not for those who look over one's shoulder. */
function ValueField({ text, set, wrong, first }: { text: string; set: (text: string) => void; wrong: string | null; first: boolean }) {
  const [shown, setShown] = useState(false);
  const id = useId();
  const short = text !== "" && secretValue(text).length < SHORTEST_SECRET ? `at least ${SHORTEST_SECRET} characters` : null;
  return (
    <>
      <label for={id}>Value</label>
      <textarea id={id} class={`mono ${shown ? "" : "masked"}`} rows={3} value={text} autofocus={first} autocomplete="off" autocapitalize="off" spellcheck={false}
        aria-invalid={Boolean(wrong)} aria-describedby={`${id}-note`} onInput={(event) => set(event.currentTarget.value)} />
      <Note id={`${id}-note`} wrong={wrong ?? short} hint="one newline at its end is dropped" />
      <label class="check"><input type="checkbox" checked={shown} onChange={(event) => setShown(event.currentTarget.checked)} /> Show what I type</label>
    </>
  );
}

export function DeleteSecretDialog({ secret, onClose, changed }: { secret: Secret; onClose: () => void; changed: () => void }) {
  const act = async () => {
    await del(`v1/secrets/${encodeURIComponent(secret.name)}`);
    announce(`${secret.name} is deleted`);
    changed();
  };
  return (
    <Confirm title="Delete this secret?" act="Delete it" danger command={`allpass secret delete ${secret.name}`} onAct={act} onClose={onClose}>
      <p class="mono"><b>{secret.name}</b></p>
      {secret.used_by_jobs > 0
        ? <p class="bad">{plural(secret.used_by_jobs, "unfinished job names", "unfinished jobs name")} it. Runs that have it keep it until they end; those that start later fail, and say so.</p>
        : <p>No unfinished job names it.</p>}
      <p>Its value cannot be had back.</p>
    </Confirm>
  );
}
