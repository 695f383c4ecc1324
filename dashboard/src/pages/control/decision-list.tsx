import { useMemo, useRef, useState } from "preact/hooks";

import { get } from "../../api/client";
import type { Page } from "../../api/types";
import { absolute, count, plural } from "../../format";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { href, route, setQuery } from "../../route";
import { chose, gpuTime, isQuiet, ratio, seconds, type Decision } from "./decisions";
import type { Decisions } from "./use-decisions";

const FEW = 15;
const MORE = 100;
const ANEW_MS = 6_000;

/** All decisions, or those with an action on one job. */
export function DecisionList({ read }: { read: Decisions }) {
  const { query } = route.value;
  const job = query.get("job");
  const quiet = query.get("all") === "1";
  return (
    <section class="decisions" aria-label="Decisions">
      <h2>Decisions</h2>
      <div class="filters-row">
        <JobField key={job ?? ""} job={job} />
        {!job && <label class="check"><input type="checkbox" checked={quiet} onChange={(event) => setQuery({ all: event.currentTarget.checked ? "1" : null })} /> Also those that changed nothing</label>}
      </div>
      {job ? <OfJob key={job} job={job} /> : <Newest read={read} quiet={quiet} />}
    </section>
  );
}

function JobField({ job }: { job: string | null }) {
  const submit = (event: Event) => {
    event.preventDefault();
    const text = new FormData(event.currentTarget as HTMLFormElement).get("job");
    setQuery({ job: String(text ?? "").trim() || null });
  };
  return (
    <form class="job-field" role="search" onSubmit={submit}>
      <input name="job" type="search" aria-label="Only decisions with an action on this job" placeholder="with an action on job_…" defaultValue={job ?? ""}
        onInput={(event) => event.currentTarget.value === "" && job && setQuery({ job: null })} />
      <button type="submit">Find</button>
    </form>
  );
}

function OfJob({ job }: { job: string }) {
  const { value, error, again } = useReading(`ticks of ${job}`, (signal) => get<Page<Decision>>("v1/ticks", { query: { job_id: job, limit: 200 }, signal }), ANEW_MS);
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading its decisions" />;
  if (!value.data.length) return <Empty title="No decision that is kept has an action on this job." />;
  return <Rows list={value.data} more={null} />;
}

function Newest({ read, quiet }: { read: Decisions; quiet: boolean }) {
  const [most, setMost] = useState(FEW);
  const all = read.list ?? [];
  const held = useHeld(useMemo(() => (quiet ? all : all.filter((one) => !isQuiet(one))), [all, quiet]));
  const { list } = held;
  const showMore = async () => {
    setMost((before) => before + MORE);
    if (list.length < most + MORE) await read.readOlder();
  };
  const more = list.length > most || read.older !== null ? showMore : null;
  return (
    <>
      <p class="faint small-text decisions-note" role="status">
        {held.missed > 0 ? `${plural(held.missed, "new decision")}: they stand here as soon as the pointer leaves the list.` : `${plural(list.length, "decision")} read, newest first${quiet ? "" : "; of these each did something"}.`}
      </p>
      {list.length ? <div {...held.hold}><Rows list={list.slice(0, most)} more={more} /></div>
        : <Empty title={`None of the last ${count(all.length)} decisions changed anything.`}>
            <p><button type="button" onClick={() => setQuery({ all: "1" })}>Show them all the same</button></p>
          </Empty>}
    </>
  );
}

/** While one points at the list or is in it by key, nothing comes in from above: what one is about to click stays where it is. */
function useHeld(list: readonly Decision[]) {
  const [since, setSince] = useState<number | null>(null);
  const within = useRef({ pointer: false, focus: false });
  const note = (change: Partial<{ pointer: boolean; focus: boolean }>) => {
    Object.assign(within.current, change);
    const holds = within.current.pointer || within.current.focus;
    setSince((before) => (holds ? before ?? list[0]?.id ?? null : null));
  };
  const shown = since === null ? list : list.filter((one) => one.id <= since);
  const hold = {
    onPointerEnter: () => note({ pointer: true }), onPointerLeave: () => note({ pointer: false }),
    onFocusIn: () => note({ focus: true }), onFocusOut: () => note({ focus: false }),
  };
  return { list: shown, missed: list.length - shown.length, hold };
}

function Rows({ list, more }: { list: readonly Decision[]; more: (() => Promise<void>) | null }) {
  const [failed, setFailed] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const read = async () => {
    setBusy(true);
    await more?.().then(() => setFailed(null), (error: unknown) => setFailed(error as Error));
    setBusy(false);
  };
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Decisions">
        <table class="decision-table">
          <thead><tr><th>When</th><th class="more">Because of</th><th class="number">p</th><th class="number more">F</th><th class="number more">Demand</th>
            <th class="number more">GPUs</th><th class="number more">Queue</th><th>Chose</th><th>Why</th></tr></thead>
          <tbody>{list.map((one) => <Row key={one.id} decision={one} />)}</tbody>
        </table>
      </div>
      {failed && <p class="bad" role="alert">{failed.message}</p>}
      {more && <p><button type="button" disabled={busy} onClick={() => void read()}>{busy ? "Reading …" : "Show older ones"}</button></p>}
    </>
  );
}

function Row({ decision }: { decision: Decision }) {
  const { id, at, trigger, pressure, actions } = decision;
  return (
    <tr>
      <td><a href={href("control", String(id))} title={`decision ${id}, ${absolute(at)}`}><Time at={at} /></a></td>
      <td class="more faint">{trigger}</td>
      <td class={`number ${pressure !== null && pressure > 1 ? "bad" : ""}`}>{ratio(pressure)}</td>
      <td class="number more">{seconds(decision.serverless_budget_s)}</td>
      <td class="number more">{gpuTime(decision.demand_gpu_s)}</td>
      <td class="number more">{decision.capacity_gpus === null ? "–" : count(decision.capacity_gpus)}</td>
      <td class="number more">{count(decision.jobs_waiting)}</td>
      <td class={isQuiet(decision) ? "faint" : ""}>{chose(actions)}</td>
      <td class="decision-why"><Why decision={decision} /></td>
    </tr>
  );
}

function Why({ decision }: { decision: Decision }) {
  const { id, reasons } = decision;
  if (!reasons.length) return <span class="faint">{isQuiet(decision) ? "" : "about jobs and machines of other projects"}</span>;
  return (
    <div>
      <span class="two-lines" title={reasons.join("\n")}>{reasons[0]}</span>
      {reasons.length > 1 && <a class="small-text" href={href("control", String(id))}>{count(reasons.length - 1)} more</a>}
    </div>
  );
}
