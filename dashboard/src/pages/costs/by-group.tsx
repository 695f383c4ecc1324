/** The same money by app, job, label, API key, day, provider, tier or number of GPUs, as one table; also of one job. */

import { useMemo } from "preact/hooks";

import { get } from "../../api/client";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { href, setQuery } from "../../route";
import { GroupTable } from "./group-table";
import { groupsOf, inOrder } from "./groups";
import { LabelChoice } from "./label-choice";
import { asked, commandOf, type Range } from "./range";
import type { Usage } from "./shapes";

const ANEW_MS = 60_000;
export const GROUPINGS = [["app", "App"], ["job", "Job"], ["label", "Label"], ["key", "API key"], ["day", "Day"], ["provider", "Provider"], ["tier", "Tier"], ["size", "GPUs"]] as const;
const UNKNOWN: Partial<Record<Grouping, string>> = { key: "no key was noted", size: "before any GPU was held" };
export type Grouping = (typeof GROUPINGS)[number][0];

export function ByGroup({ range, query }: { range: Range; query: URLSearchParams }) {
  const by = GROUPINGS.find(([name]) => name === query.get("by"))?.[0] ?? "app";
  const label = query.get("label") ?? "";
  const groupBy = by === "label" ? `label:${label}` : by;
  const job = query.get("job") ?? "";
  const command = commandOf(range, by === "label" ? `label:${label || "KEY"}` : by, job);
  return (
    <>
      <div class="by-bar">
        <div class="statuses" role="group" aria-label="Grouped by">
          {GROUPINGS.map(([name, title]) => <button key={name} type="button" aria-pressed={by === name} onClick={() => setQuery({ by: name === "app" ? null : name }, { replace: false })}>{title}</button>)}
        </div>
        {by === "label" && <LabelChoice value={label} />}
        {job && <p class="of-job">Of <a href={href("jobs", job)}>{job}</a> alone. <button type="button" class="quiet" onClick={() => setQuery({ job: null }, { replace: false })}>Show all jobs</button></p>}
        {command && <Command text={command} />}
      </div>
      {by === "label" && !label ? <Empty title="Choose a label"><p>Jobs carry labels as <code>allpass run --label team=nlp</code> sets them.</p></Empty>
        : <Lines range={range} by={by} groupBy={groupBy} job={job} />}
    </>
  );
}

function Lines({ range, by, groupBy, job }: { range: Range; by: Grouping; groupBy: string; job: string }) {
  const { from, to } = asked(range);
  const read = (signal: AbortSignal) => get<Usage>("v1/usage", { query: { group_by: groupBy, job: job || null, from, to, limit: 1000 }, signal });
  const { value, error, again } = useReading(`usage ${groupBy} ${job} ${from} ${to}`, read, ANEW_MS);
  const groups = useMemo(() => (value ? inOrder(groupsOf(value.lines, UNKNOWN[by]), by) : []), [value, by]);
  if (!value) return <div class="lines-place">{error ? <Failure error={error} again={again} /> : <Loading what="Reading the ledger" />}</div>;
  if (!groups.length) return <div class="lines-place"><Nothing all={range.preset === "all"} /></div>;
  return (
    <>
      {error && <p class="wait" role="status">Not up to date: {error.message}</p>}
      <GroupTable key={`${groupBy} ${job}`} groups={groups} used={value} by={by} label={groupBy.slice("label:".length)} />
    </>
  );
}

function Nothing({ all }: { all: boolean }) {
  if (all) return <Empty title="Nothing was spent yet"><p>What jobs cost stands here from their first second on.</p></Empty>;
  return <Empty title="Nothing was spent in these days"><p><button type="button" onClick={() => setQuery({ range: "all", from: null, to: null }, { replace: false })}>Show all days</button></p></Empty>;
}
