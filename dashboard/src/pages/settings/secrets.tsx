import { useState } from "preact/hooks";

import { may } from "../../api/session";
import { count } from "../../format";
import { Empty } from "../../parts/empty";
import { Time } from "../../parts/time";
import { DeleteSecretDialog, SetSecretDialog } from "./secret-dialogs";
import { Read, Section, useList } from "./section";
import type { Secret } from "./shapes";

type Open = { kind: "set"; secret: Secret | null } | { kind: "delete"; secret: Secret };

export function Secrets() {
  const read = useList<Secret>("v1/secrets");
  const [open, setOpen] = useState<Open | null>(null);
  const close = () => setOpen(null);
  const writes = may("submit");
  return (
    <Section title="Secrets" what="Values for jobs that name them, such as a token of a model hub. They can be replaced and deleted; nobody can read them again, here or anywhere." command="allpass secret list"
      action={writes && <button type="button" onClick={() => setOpen({ kind: "set", secret: null })}>Set a secret …</button>}>
      <Read from={read} what="Reading the secrets">{(list) => (list.length ? <Table list={list} open={writes ? setOpen : null} /> : <None />)}</Read>
      {open?.kind === "set" && <SetSecretDialog known={read.value ?? []} replaced={open.secret} onClose={close} changed={read.again} />}
      {open?.kind === "delete" && <DeleteSecretDialog secret={open.secret} onClose={close} changed={read.again} />}
    </Section>
  );
}

function None() {
  return (
    <Empty title="No secret is kept.">
      <p>A job finds each one that it names in its environment: <code>allpass run . --secret HF_TOKEN</code>.</p>
    </Empty>
  );
}

function Table({ list, open }: { list: readonly Secret[]; open: ((what: Open) => void) | null }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Secrets">
      <table class="settings-table">
        <thead><tr><th>Name</th><th class="number">Created</th><th class="number">Changed</th><th class="number">Unfinished jobs</th>{open && <th><span class="hidden">Change</span></th>}</tr></thead>
        <tbody>
          {list.map((one) => (
            <tr key={one.name}>
              <th scope="row"><span class="named mono">{one.name}</span></th>
              <td class="number"><Time at={one.created_at} /></td>
              <td class="number"><Time at={one.changed_at} /></td>
              <td class="number">{count(one.used_by_jobs)}</td>
              {open && (
                <td class="act">
                  <button type="button" class="small" aria-label={`Replace ${one.name}`} onClick={() => open({ kind: "set", secret: one })}>Replace …</button>{" "}
                  <button type="button" class="small danger" aria-label={`Delete ${one.name}`} onClick={() => open({ kind: "delete", secret: one })}>Delete …</button>
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
