/** All machines that are rented for this project, and those that were. */

import { useMemo } from "preact/hooks";

import { get } from "../../api/client";
import { count, hourly, money, plural } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { href, route, setQuery } from "../../route";
import { NodeFilterBar } from "./node-filters";
import { NodeTable } from "./node-table";
import { commandOf, filtersOf, fits, grouped, NOTHING_HELD, rowOf, sumsOf, type NodeFilters, type NodeRow, type Sums } from "./nodes";
import { readEnded, readHeld, readLive } from "./reads";

const ANEW_MS = 10_000;
const HELD_MS = 15_000;
const TODAY_MS = 60_000;
const MANY = 500; // of them the list is long: it is read less often
const NONE: readonly NodeRow[] = [];

export function NodesTab() {
  const query = route.value.query.toString();
  const filters = useMemo(() => filtersOf(new URLSearchParams(query)), [query]);
  const { live, liveRows, ended, held, jobs } = useNodes(filters.state === "ended");
  const of = filters.state === "ended" ? ended.rows : liveRows;
  const fitting = useMemo(() => (of ?? NONE).filter((row) => fits(row, filters, held)), [of, filters, held]);
  const shown = useMemo(() => grouped(fitting, filters), [fitting, filters]);
  const error = filters.state === "ended" ? ended.error : live.error;
  const again = filters.state === "ended" ? ended.again : live.again;
  return (
    <>
      <Figures sums={liveRows && sumsOf(liveRows)} />
      <NodeFilterBar filters={filters} nodes={live.value} ended={ended.rows?.length ?? null} providers={of ?? NONE} />
      <p class="fleet-line" role="status">
        <span class={error && of ? "wait" : "faint"}>{lineOf(error, of, fitting.length, filters, ended.complete)}</span>
        {jobs.error && <span class="wait">Their jobs could not be read ({jobs.error.message}): how many GPUs each holds is not known.</span>}
        <Command text={commandOf(filters)} />
      </p>
      {!of ? (error ? <Failure error={error} again={again} /> : <Loading what="Reading the machines" />)
        : shown.length ? <NodeTable rows={shown} held={held} filters={filters} />
        : of.length ? <NoneFits /> : <None ended={filters.state === "ended"} />}
    </>
  );
}

function useNodes(wantEnded: boolean) {
  const many = useMemo(() => ({ now: false }), []);
  const live = useReading("nodes", readLive, many.now ? 3 * ANEW_MS : ANEW_MS);
  many.now = (live.value?.length ?? 0) > MANY;
  const jobs = useReading("holders", readHeld, many.now ? 3 * HELD_MS : HELD_MS);
  const ended = useReading(`nodes ended ${wantEnded}`, async (signal) => (wantEnded ? readEnded(signal) : null), 6 * ANEW_MS);
  const held = jobs.value ?? NOTHING_HELD;
  const liveRows = useMemo(() => live.value?.map((node) => rowOf(node, held)) ?? null, [live.value, held]);
  const endedRows = useMemo(() => ended.value?.nodes.map((node) => rowOf(node, NOTHING_HELD)) ?? null, [ended.value]);
  return { live, liveRows, held, jobs, ended: { rows: endedRows, complete: ended.value?.complete ?? true, error: ended.error, again: ended.again } };
}

function lineOf(error: Error | null, of: readonly NodeRow[] | null, fit: number, filters: NodeFilters, complete: boolean): string {
  if (!of) return "";
  if (error) return `Not up to date: ${error.message}`;
  const part = fit < of.length ? `${count(fit)} of ` : "";
  const machines = plural(of.length, "machine");
  if (filters.state === "ended") return `${part}${complete ? "" : "the newest "}${machines} that ended`;
  return `${part}${machines} rented for this project`;
}

function Figures({ sums }: { sums: Sums | null }) {
  const today = useReading("idle today", (signal) => get<{ idle_cost: number; cost: number }>("v1/usage", { query: { group_by: "tier", from: `${new Date().toISOString().slice(0, 10)}T00:00:00Z`, limit: 1 }, signal }), TODAY_MS);
  const spent = today.value;
  return (
    <dl class="figures fleet-figures">
      <div><dt>GPUs busy</dt><dd>{sums ? <>{sums.most && "≤ "}{count(sums.busy)} <small class="faint">of {count(sums.gpus)}</small></> : "–"}</dd></div>
      <div><dt>GPUs free</dt><dd>{sums ? <>{count(sums.free)}{sums.coming > 0 && <small class="faint"> and {count(sums.coming)} starting</small>}</> : "–"}</dd></div>
      <div><dt>All machines</dt><dd>{sums ? hourly(sums.perHour) : "–"}</dd></div>
      <div title="For GPUs that nobody holds: now, by the hour, and since midnight UTC from the ledger">
        <dt>Idle of that</dt>
        <dd class={sums?.idlePerHour ? "wait" : ""}>{sums ? hourly(sums.idlePerHour) : "–"} {spent && <small class="faint">{money(spent.idle_cost)} today</small>}</dd>
      </div>
    </dl>
  );
}

function NoneFits() {
  const clear = () => setQuery({ tier: null, provider: null, q: null, state: route.value.query.get("state") === "ended" ? "ended" : null }, { replace: false });
  return <Empty title="No machine fits these filters."><p><button type="button" onClick={clear}>Show all of them</button></p></Empty>;
}

function None({ ended }: { ended: boolean }) {
  if (ended) return <Empty title="No machine has ended yet." />;
  return (
    <Empty title="No machine is rented">
      <p>One is rented as soon as a job needs it, and given back when none does.</p>
      <p><a href={href("fleet", null, null, { state: "ended" })}>Those that were rented</a>, or <a href={href("fleet", "market")}>what could be</a></p>
    </Empty>
  );
}
