import { useId, useState } from "preact/hooks";

import { del, post } from "../../api/client";
import { announce } from "../../parts/announcer";
import { Confirm } from "../../parts/dialog";
import { Time } from "../../parts/time";
import { Note, SelectField, TextField } from "./field";
import { FormDialog } from "./form-dialog";
import { isOwner, isOwnKey } from "./scopes";
import type { CreatedKey, Key } from "./shapes";
import { keyCommand, LIFETIMES, SCOPES, withScope } from "./words";

const DAY_MS = 86_400_000;

export function CreateKeyDialog({ onClose, created }: { onClose: () => void; created: (key: CreatedKey) => void }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<string[]>(["read", "submit"]);
  const [days, setDays] = useState<number | null>(null);
  const act = async () => {
    const expires_at = days === null ? null : new Date(Date.now() + days * DAY_MS).toISOString();
    created(await post<CreatedKey>("v1/keys", { name: name.trim(), scopes, expires_at }, { idempotencyKey: undefined }));
    announce("The key is created: keep it now");
  };
  return (
    <FormDialog title="Create an API key" act="Create" fields={["name", "scopes", "expires_at"]} command={keyCommand(name, scopes, days)}
      ready={name.trim() !== "" && scopes.length > 0} onAct={act} onClose={onClose}>
      {(wrong) => (
        <>
          <TextField first label="What it is for" hint="a person, a machine, a pipeline" value={name} set={setName} wrong={wrong("name")} />
          <ScopeFields scopes={scopes} set={setScopes} wrong={wrong("scopes")} />
          <SelectField label="It expires" value={String(days)} wrong={wrong("expires_at")} options={LIFETIMES.map((one) => ({ value: String(one.days), text: one.text }))}
            set={(value) => setDays(value === "null" ? null : Number(value))} />
        </>
      )}
    </FormDialog>
  );
}

function ScopeFields({ scopes, set, wrong }: { scopes: readonly string[]; set: (scopes: string[]) => void; wrong: string | null }) {
  const id = useId();
  return (
    <fieldset class="scopes" aria-describedby={id}>
      <legend>It may</legend>
      {SCOPES.filter((one) => one.name !== "owner" || isOwner()).map((one) => (
        <label key={one.name} class="check">
          <input type="checkbox" checked={scopes.includes(one.name)} onChange={(event) => set(withScope(scopes, one.name, event.currentTarget.checked))} />
          <span><b>{one.name}</b> <span class="faint">{one.what}</span></span>
        </label>
      ))}
      <Note id={id} wrong={wrong ?? (scopes.length ? null : "choose at least one")} />
    </fieldset>
  );
}

export function RevokeDialog({ apiKey, onClose, changed }: { apiKey: Key; onClose: () => void; changed: () => void }) {
  const act = async () => {
    await del(`v1/keys/${encodeURIComponent(apiKey.id)}`);
    announce("The key is revoked");
    changed();
  };
  return (
    <Confirm title="Revoke this key for good?" act="Revoke it" danger command={`allpass key revoke ${apiKey.id}`} onAct={act} onClose={onClose}>
      <p><b>{apiKey.name}</b> <span class="mono faint">{apiKey.prefix}…</span></p>
      <p>Whoever uses it is refused within 5 seconds. Jobs that it has submitted go on. It {apiKey.last_used_at ? <>was last used <Time at={apiKey.last_used_at} /></> : "was never used"}.</p>
      {isOwnKey(apiKey.id) && <p class="bad">You are signed in with this key: your session ends with it.</p>}
    </Confirm>
  );
}
