/** The same money by app, job, label, API key, day, provider or tier, as one table. */

import { useMemo } from "preact/hooks";

import { get } from "../../api/client";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { setQuery } from "../../route";
import { GroupTable } from "./group-table";
import { groupsOf } from "./groups";
import { LabelChoice } from "./label-choice";
import { asked, commandOf, type Range } from "./range";
import type { Usage } from "./shapes";

const ANEW_MS = 60_000;
export const GROUPINGS = [["app", "App"], ["job", "Job"], ["label", "Label"], ["key", "API key"], ["day", "Day"], ["provider", "Provider"], ["tier", "Tier"]] as const;
export type Grouping = (typeof GROUPINGS)[number][0];

export function ByGroup({ range, query }: { range: Range; query: URLSearchParams }) {
  const by = GROUPINGS.find(([name]) => name === query.get("by"))?.[0] ?? "app";
  const label = query.get("label") ?? "";
  const groupBy = by === "label" ? `label:${label}` : by;
  const command = commandOf(range, by === "label" ? `label:${label || "KEY"}` : by);
  return (
    <>
      <div class="by-bar">
        <div class="statuses" role="group" aria-label="Grouped by">
          {GROUPINGS.map(([name, title]) => <button key={name} type="button" aria-pressed={by === name} onClick={() => setQuery({ by: name === "app" ? null : name }, { replace: false })}>{title}</button>)}
        </div>
        {by === "label" && <LabelChoice value={label} />}
        {command && <Command text={command} />}
      </div>
      {by === "label" && !label ? <Empty title="Choose a label"><p>Jobs carry labels as <code>allpass run --label team=nlp</code> sets them.</p></Empty>
        : <Lines range={range} by={by} groupBy={groupBy} />}
    </>
  );
}

function Lines({ range, by, groupBy }: { range: Range; by: Grouping; groupBy: string }) {
  const { from, to } = asked(range);
  const read = (signal: AbortSignal) => get<Usage>("v1/usage", { query: { group_by: groupBy, from, to, limit: 1000 }, signal });
  const { value, error, again } = useReading(`usage ${groupBy} ${from} ${to}`, read, ANEW_MS);
  const groups = useMemo(() => (value ? inOrder(groupsOf(value.lines, by === "key" ? "no key was noted" : undefined), by) : []), [value, by]);
  if (!value) return <div class="lines-place">{error ? <Failure error={error} again={again} /> : <Loading what="Reading the ledger" />}</div>;
  if (!groups.length) return <div class="lines-place"><Nothing all={range.preset === "all"} /></div>;
  return (
    <>
      {error && <p class="wait" role="status">Not up to date: {error.message}</p>}
      <GroupTable key={groupBy} groups={groups} used={value} by={by} label={groupBy.slice("label:".length)} />
    </>
  );
}

function inOrder(groups: ReturnType<typeof groupsOf>, by: Grouping) {
  return by === "day" ? groups.sort((a, b) => (b.key ?? "").localeCompare(a.key ?? "")) : groups;
}

function Nothing({ all }: { all: boolean }) {
  if (all) return <Empty title="Nothing was spent yet"><p>What jobs cost stands here from their first second on.</p></Empty>;
  return <Empty title="Nothing was spent in these days"><p><button type="button" onClick={() => setQuery({ range: "all", from: null, to: null }, { replace: false })}>Show all days</button></p></Empty>;
}
