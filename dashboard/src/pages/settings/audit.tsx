import { useState } from "preact/hooks";

import { get } from "../../api/client";
import { may } from "../../api/session";
import type { Page } from "../../api/types";
import { count } from "../../format";
import { Empty } from "../../parts/empty";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { href } from "../../route";
import { NotAllowed, Read, Section, useKeyNames } from "./section";
import type { AuditEntry } from "./shapes";
import { actionInWords, answered } from "./words";

const PAGE = 100;
const COMMAND = "curl -H \"Authorization: Bearer $ALLPASS_API_KEY\" $ALLPASS_URL/v1/audit"; // no command of the CLI reads it

export function Audit() {
  const allowed = may("admin");
  return (
    <Section title="Audit log" what="Writes that keys of this project asked for, newest first, with what was answered. Nothing in it can be changed." command={COMMAND}>
      {allowed ? <Shown /> : <NotAllowed scope="admin" what="Reading the audit log" />}
    </Section>
  );
}

function Shown() {
  const first = useReading("audit", (signal) => readPage(null, signal));
  const [older, setOlder] = useState<Page<AuditEntry>>({ data: [], next_cursor: null });
  const nameOf = useKeyNames();
  return (
    <Read from={first} what="Reading the audit log">
      {(page) => {
        if (!page.data.length) return <Empty title="No key has asked for a write yet." />;
        const cursor = older.data.length ? older.next_cursor : page.next_cursor;
        return (
          <>
            <Table list={[...page.data, ...older.data]} nameOf={nameOf} />
            {cursor !== null && <More read={async () => {
              const next = await readPage(cursor);
              setOlder((before) => ({ data: [...before.data, ...next.data], next_cursor: next.next_cursor }));
            }} />}
          </>
        );
      }}
    </Read>
  );
}

function readPage(cursor: string | null, signal?: AbortSignal): Promise<Page<AuditEntry>> {
  return get<Page<AuditEntry>>("v1/audit", { query: { limit: PAGE, cursor }, signal });
}

function More({ read }: { read: () => Promise<void> }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const act = async () => {
    setBusy(true);
    await read().then(() => setError(null), (failed: unknown) => setError(failed as Error));
    setBusy(false);
  };
  return (
    <p>
      <button type="button" disabled={busy} onClick={() => void act()}>{busy ? "Reading …" : "Show older ones"}</button>
      {error && <span class="bad" role="alert"> {error.message}</span>}
    </p>
  );
}

function Table({ list, nameOf }: { list: readonly AuditEntry[]; nameOf: (id: string) => string }) {
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Audit log">
        <table class="settings-table audit-table">
          <thead><tr><th>When</th><th>Key</th><th>Asked for</th><th>Of</th><th>Answer</th><th>Request</th></tr></thead>
          <tbody>{list.map((one) => <Row key={one.id} entry={one} nameOf={nameOf} />)}</tbody>
        </table>
      </div>
      <p class="faint small-text">{count(list.length)} read.</p>
    </>
  );
}

function Row({ entry, nameOf }: { entry: AuditEntry; nameOf: (id: string) => string }) {
  const answer = answered(entry.status);
  const job = entry.object_id?.startsWith("job_");
  return (
    <tr>
      <td class="whole"><Time at={entry.at} /></td>
      <td><span class="named" title={`${nameOf(entry.key_id)}, ${entry.key_id}`}>{nameOf(entry.key_id)}</span></td>
      <td title={entry.action}>{actionInWords(entry.action)}</td>
      <td class="mono">{entry.object_id === null ? "–" : job ? <a href={href("jobs", entry.object_id)}>{entry.object_id}</a> : <span class="named">{entry.object_id}</span>}</td>
      <td class="whole"><span class={`status ${answer.kind}`}>{answer.text}</span> <span class="faint number">{entry.status}</span></td>
      <td class="mono faint">{entry.request_id}</td>
    </tr>
  );
}
