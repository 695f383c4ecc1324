/** A file of jobs: sent, read by the service, and what was found in it. */

import { useId, useRef, useState } from "preact/hooks";

import { upload } from "../../api/client";
import { count, duration, plural } from "../../format";
import { Note, SelectField } from "../settings/field";
import { FORMATS } from "./request";
import type { TraceReport } from "./shapes";

interface TraceFieldProps {
  report: TraceReport | null;
  found: (report: TraceReport | null) => void;
  wrong: string | null;
}

export function TraceField({ report, found, wrong }: TraceFieldProps) {
  const id = useId();
  const turn = useRef(0);
  const [format, setFormat] = useState("csv");
  const [state, set] = useState<{ busy: boolean; error: string | null }>({ busy: false, error: null });
  const send = async (file: File | undefined) => {
    const mine = (turn.current += 1);
    found(null);
    set({ busy: Boolean(file), error: null });
    if (!file) return;
    try {
      const report = await upload<TraceReport>("v1/simulations/trace", file, { query: { name: file.name, format } });
      if (mine !== turn.current) return;
      found(report);
      set({ busy: false, error: null });
    } catch (error) {
      if (mine === turn.current) set({ busy: false, error: (error as Error).message });
    }
  };
  const told = state.error ?? wrong;
  return (
    <>
      <div><SelectField label="Its form" hint="csv, or the log as published" value={format} set={setFormat} options={FORMATS.map(([value, text]) => ({ value, text }))} /></div>
      <div class="trace-file">
        <label for={id}>Trace</label>
        <input id={id} type="file" accept=".csv,.gz,.json" aria-invalid={told !== null} aria-describedby={`${id}-note`}
          onClick={(event) => (event.currentTarget.value = "")} onChange={(event) => void send(event.currentTarget.files?.[0])} />
        <Note id={`${id}-note`} hint={state.busy ? "Reading it …" : report ? inWords(report) : "packed with gzip or not"} wrong={told} />
      </div>
    </>
  );
}

function inWords({ name, jobs, left_out, span_s, gpu_hours }: TraceReport): string {
  const aside = left_out ? `, ${count(left_out)} rows left out` : "";
  return `${name}: ${plural(jobs, "job")} within ${duration(span_s * 1000)}, ${count(Math.round(gpu_hours))} GPU h of work${aside}`;
}
