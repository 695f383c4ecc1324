import { useState } from "preact/hooks";

import { may } from "../../api/session";
import { Empty } from "../../parts/empty";
import { now, Time } from "../../parts/time";
import { CreateKeyDialog, RevokeDialog } from "./key-dialogs";
import { NewKey } from "./new-key";
import { isOwner, isOwnKey } from "./scopes";
import { NotAllowed, Read, Section, useList } from "./section";
import type { CreatedKey, Key } from "./shapes";
import { keyState } from "./words";

export function Keys() {
  if (!may("admin")) return <Section title="API keys" what="Who may do what in this project." command="allpass key list"><NotAllowed scope="admin" what="Seeing API keys" /></Section>;
  return <Allowed />;
}

function Allowed() {
  const read = useList<Key>("v1/keys");
  const [creating, setCreating] = useState(false);
  const [created, setCreated] = useState<CreatedKey | null>(null);
  const [revoking, setRevoking] = useState<Key | null>(null);
  return (
    <Section title="API keys" what="Who may do what in this project. A key itself is shown once, when it is created." command="allpass key list"
      action={<button type="button" onClick={() => setCreating(true)}>Create a key …</button>}>
      {created && <NewKey created={created} onDone={() => setCreated(null)} />}
      <Read from={read} what="Reading the keys">{(keys) => (keys.length ? <Table keys={keys} revoke={setRevoking} /> : <Empty title="There are no keys." />)}</Read>
      {creating && <CreateKeyDialog onClose={() => setCreating(false)} created={(key) => {
        setCreated(key);
        read.again();
      }} />}
      {revoking && <RevokeDialog apiKey={revoking} onClose={() => setRevoking(null)} changed={read.again} />}
    </Section>
  );
}

function Table({ keys, revoke }: { keys: readonly Key[]; revoke: (key: Key) => void }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Keys">
      <table class="settings-table keys-table">
        <thead><tr><th>Name</th><th>Begins with</th><th>May</th><th class="number">Created</th><th class="number">Last used</th><th class="number">Expires</th><th>State</th><th><span class="hidden">Revoke</span></th></tr></thead>
        <tbody>{keys.map((one) => <Row key={one.id} of={one} revoke={revoke} />)}</tbody>
      </table>
    </div>
  );
}

const KINDS = { usable: "good", expired: "wait", revoked: "over" } as const;

function Row({ of, revoke }: { of: Key; revoke: (key: Key) => void }) {
  const state = keyState(of, now.value);
  const mine = isOwnKey(of.id);
  const revocable = state !== "revoked" && (isOwner() || !of.scopes.includes("owner"));
  return (
    <tr class={state === "usable" ? "" : "faint"}>
      <th scope="row"><span class="named" title={of.id}>{of.name}</span>{mine && <small class="faint"> you are signed in with it</small>}</th>
      <td class="mono">{of.prefix}…</td>
      <td>{of.scopes.join(", ")}</td>
      <td class="number"><Time at={of.created_at} /></td>
      <td class="number">{of.last_used_at ? <Time at={of.last_used_at} /> : "never"}</td>
      <td class="number">{of.expires_at ? <Time at={of.expires_at} /> : "never"}</td>
      <td><span class={`status ${KINDS[state]}`}>{state}</span>{of.revoked_at && <> <Time at={of.revoked_at} /></>}</td>
      <td class="act">{revocable && <button type="button" class="small danger" aria-label={`Revoke ${of.name}`} onClick={() => revoke(of)}>Revoke …</button>}</td>
    </tr>
  );
}
