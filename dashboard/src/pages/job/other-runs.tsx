import { useState } from "preact/hooks";

import { get } from "../../api/client";
import type { Job, JobLine, JobLines } from "../../api/jobs";
import { Status } from "../../parts/status";
import { Time } from "../../parts/time";
import { figures } from "../../parts/chart-data";
import { useReading } from "../../parts/reading";
import { setQuery } from "../../route";
import { MOST_OTHERS } from "./metrics";

const LISTED = 50;

/** Other runs to draw beside this one: of its sweep, or of its app. */
export function OtherRuns({ job, chosen }: { job: Job; chosen: readonly string[] }) {
  const [open, setOpen] = useState(chosen.length > 0);
  return (
    <details class="others" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Compare with other runs{chosen.length > 0 && ` (${chosen.length})`}</summary>
      {open && <List job={job} chosen={chosen} />}
    </details>
  );
}

function List({ job, chosen }: { job: Job; chosen: readonly string[] }) {
  const [ofSweep, setOfSweep] = useState(job.sweep_id !== null);
  const [text, setText] = useState("");
  const query = { limit: LISTED, q: text.trim(), ...(ofSweep ? { sweep_id: job.sweep_id } : { app_id: job.app_id }) };
  const { value, error } = useReading(`runs ${JSON.stringify(query)}`, (signal) => get<JobLines>("v1/jobs/table", { query, signal }));
  const runs = (value?.data ?? []).filter((one) => one.id !== job.id);
  return (
    <>
      <div class="filters-row">
        {job.sweep_id && <label class="check"><input type="checkbox" checked={ofSweep} onChange={(event) => setOfSweep(event.currentTarget.checked)} /> Only its sweep</label>}
        <input type="search" class="search" aria-label="Search runs" placeholder="Name, label or id" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        {chosen.length > 0 && <button type="button" class="small" onClick={() => setQuery({ with: null })}>None of them</button>}
      </div>
      {error && <p class="bad" role="alert">{error.message}</p>}
      {value && !runs.length && <p class="faint">There is no other run of it.</p>}
      <ul class="run-list">{runs.map((run) => <Run key={run.id} run={run} chosen={chosen} />)}</ul>
    </>
  );
}

function Run({ run, chosen }: { run: JobLine; chosen: readonly string[] }) {
  const checked = chosen.includes(run.id);
  const toggle = () => setQuery({ with: (checked ? chosen.filter((id) => id !== run.id) : [...chosen, run.id]).join(",") || null });
  return (
    <li>
      <label class="check">
        <input type="checkbox" checked={checked} disabled={!checked && chosen.length >= MOST_OTHERS} onChange={toggle} />
        <span class="cut run-name">{run.name} <span class="faint mono">{run.id.slice(-4)}</span></span>
        <Status status={run.status} />
        <span class="number">{figures(run.losses.at(-1))}</span>
        <span class="faint number"><Time at={run.submitted_at} /></span>
      </label>
    </li>
  );
}
