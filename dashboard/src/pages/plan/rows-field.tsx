/** A file of rows: sent, checked by the service, and what was found in it. */

import { useId, useRef, useState } from "preact/hooks";

import { ApiError, upload } from "../../api/client";
import { bytes, count, plural } from "../../format";
import { Note } from "../settings/field";
import { tokensOf, type DataReport } from "./recipe";

interface RowsFieldProps {
  report: DataReport | null;
  found: (report: DataReport | null) => void;
  wrong: string | null;
}

const LARGE = 16_000_000; // from here on a broken connection may be a refusal that did not arrive

export function RowsField({ report, found, wrong }: RowsFieldProps) {
  const id = useId();
  const turn = useRef(0);
  const [state, set] = useState<{ busy: string | null; error: string | null }>({ busy: null, error: null });
  const send = async (file: File | undefined) => {
    const mine = (turn.current += 1); // a later choice goes over an earlier one
    found(null);
    if (!file) return set({ busy: null, error: null });
    set({ busy: file.name, error: null });
    try {
      const report = await upload<DataReport>("v1/finetunes/data", file, { query: { name: file.name } });
      if (mine !== turn.current) return;
      found(report);
      set({ busy: null, error: null });
    } catch (error) {
      if (mine === turn.current) set({ busy: null, error: failure(error as Error, file) });
    }
  };
  const told = state.error ?? wrong ?? (report && !report.sha256 ? `${plural(report.problem_count, "problem")} in ${report.name}: nothing was kept` : null);
  return (
    <div class="rows-field">
      <label for={id}>Rows</label>
      <input id={id} type="file" accept=".jsonl,.ndjson,.json,.csv,.parquet" aria-invalid={told !== null} aria-describedby={`${id}-note`}
        onClick={(event) => (event.currentTarget.value = "")} // else the same file, mended, would be no change
        onChange={(event) => void send(event.currentTarget.files?.[0])} />
      <Note id={`${id}-note`} hint={state.busy ? `Checking each row of ${state.busy} …` : "JSON lines, CSV or Parquet; each row is checked before anything is submitted"} wrong={told} />
      {report && <Found report={report} />}
    </div>
  );
}

function failure(error: Error, file: File): string {
  const lost = error instanceof ApiError && error.status === 0 && file.size > LARGE;
  return lost ? `The connection broke. ${bytes(file.size)} may be more than the service takes: the command below has no such limit.` : error.message;
}

function Found({ report }: { report: DataReport }) {
  if (!report.sha256) {
    return (
      <ul class="row-problems" aria-label="What is wrong with the rows">
        {report.problems.map((one, at) => (
          <li key={at}>{one.where && <b class="mono">{one.where}: </b>}{one.message}{one.hint && <span class="faint"> – for instance {one.hint}</span>}</li>
        ))}
        {report.problem_count > report.problems.length && <li class="faint">and {count(report.problem_count - report.problems.length)} more</li>}
      </ul>
    );
  }
  return (
    <p class="rows-found" role="status">
      <b class="good">{plural(report.rows, "row")}</b> ({report.shape}) in {report.name}{report.labels > 0 && ` with ${plural(report.labels, "label")}`}, about {count(tokensOf(report))} tokens, {bytes(report.size_bytes)}.
      {report.ignored.length > 0 && <span class="faint"> Not used: {report.ignored.join(", ")}.</span>}
    </p>
  );
}
