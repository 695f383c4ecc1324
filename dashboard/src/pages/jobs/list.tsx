/** Where is my job, what does it cost, what does it learn, when is it done: all jobs of the project, as they go. */

import { useEffect, useMemo } from "preact/hooks";

import { count, plural } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { route, setQuery } from "../../route";
import { FilterBar } from "./filter-bar";
import { filtersOf, isNarrowed, keyOf, type Filters } from "./filters";
import { jobs, refresh, standing, watch, type JobsState } from "./store";
import { Table } from "./table";
import "./jobs.css";
import "./line.css";

export function JobList() {
  const query = route.value.query.toString();
  const filters = useMemo(() => filtersOf(new URLSearchParams(query)), [query]);
  const key = keyOf(filters);
  useEffect(() => watch(filters), [key]);
  useEffect(() => {
    document.addEventListener("keydown", toSearch);
    return () => document.removeEventListener("keydown", toSearch);
  }, []);
  const state = jobs.value.key === key ? jobs.value : { ...jobs.value, read: false, error: null };
  return (
    <div class="jobs-page">
      <div class="jobs-title"><h1>Jobs</h1><Line state={state} /></div>
      <FilterBar filters={filters} counts={state.counts} seen={state.rows.list} />
      <Content state={state} filters={filters} />
    </div>
  );
}

function Content({ state, filters }: { state: JobsState; filters: Filters }) {
  if (!state.read && state.error) return <Failure error={state.error} again={() => void refresh()} />;
  if (!state.read) return <Loading what="Reading the jobs" />;
  if (state.rows.list.length) return <Table state={state} folded={filters.folded && !filters.sweep_id} />;
  return isNarrowed(filters) || filters.status.length ? <NoneFits /> : <FirstJob />;
}

/** How many there are, and whether one sees them as they are now: in one place, so that nothing moves. */
function Line({ state }: { state: JobsState }) {
  const lost = standing.value === "lost";
  const read = state.rows.list.length;
  return (
    <p class="jobs-line" role="status">
      {state.read && <span class="faint number">{read < state.total ? `${count(read)} of ${plural(state.total, "job")} read` : plural(state.total, "job")}</span>}
      {lost ? <span class="wait">The live connection is lost: asking every 5 s until it is back</span> : <span class="faint live">live</span>}
    </p>
  );
}

function NoneFits() {
  const clear = () => setQuery(Object.fromEntries([...route.value.query.keys()].map((name) => [name, null])), { replace: false });
  return (
    <Empty title="No job fits these filters.">
      <p><button type="button" onClick={clear}>Show all jobs</button></p>
    </Empty>
  );
}

function FirstJob() {
  return (
    <Empty title="No jobs yet">
      <p>Fine-tune a model on rows of your own, without code:</p>
      <p><Command text="allpass finetune HuggingFaceTB/SmolLM2-135M rows.jsonl --follow" /></p>
      <p>Or send a script of yours as it is:</p>
      <p><Command text="allpass run train.py --gpu 1 --deadline 6h" /></p>
      <p>It starts within seconds, and stands here as soon as it is submitted.</p>
    </Empty>
  );
}

function toSearch(event: KeyboardEvent): void {
  const within = event.target as HTMLElement;
  if (event.key !== "/" || event.ctrlKey || event.metaKey || within.closest("input, textarea, select, dialog")) return;
  event.preventDefault();
  document.getElementById("jobs-search")?.focus();
}
