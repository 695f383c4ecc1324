import { useMemo } from "preact/hooks";

import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { Time } from "../../parts/time";
import { route, setQuery } from "../../route";
import { Charts } from "./charts";
import { DecisionList } from "./decision-list";
import { WINDOWS, windowOf, type WindowName } from "./decisions";
import { Figures } from "./figures";
import { HealthView } from "./health";
import { ProvidersView } from "./providers";
import { ofSpan, useDecisions, type Decisions } from "./use-decisions";

export function Overview() {
  const chosen = windowOf(route.value.query.get("window"));
  const read = useDecisions(WINDOWS[chosen]);
  const newest = read.list?.[0];
  return (
    <div class="control">
      <div class="control-title">
        <h1>Control</h1>
        <p class="faint">{newest ? <>Policy <b>{newest.policy}</b> decided <Time at={newest.at} /></> : "What the control loop sees, and what it makes of it"}</p>
        <Command text="allpass pressure -n 20" />
      </div>
      <HealthView />
      <Measured read={read} chosen={chosen} />
      <ProvidersView />
    </div>
  );
}

function Measured({ read, chosen }: { read: Decisions; chosen: WindowName }) {
  const { list, error, again } = read;
  const drawn = useMemo(() => ofSpan(list ?? [], WINDOWS[chosen]), [list, chosen]);
  if (!list) return error ? <Failure error={error} again={again} /> : <div class="measured-none"><Loading what="Reading the decisions" /></div>;
  if (!list.length) {
    return (
      <Empty title="Nothing was decided yet">
        <p>As soon as the control loop has taken its first decision, its pressure, demand and capacity stand here. It decides when a job comes or changes, else once a minute.</p>
      </Empty>
    );
  }
  return (
    <>
      {error && <p class="bad" role="status">Not up to date: {error.message}</p>}
      <Figures list={list} />
      <Windows chosen={chosen} />
      <Charts list={drawn} />
      <DecisionList read={read} />
    </>
  );
}

function Windows({ chosen }: { chosen: WindowName }) {
  return (
    <div class="choices windows" role="group" aria-label="How much time the charts show">
      {(Object.keys(WINDOWS) as WindowName[]).map((name) => (
        <button key={name} type="button" class="small" aria-pressed={name === chosen} onClick={() => setQuery({ window: name === "1h" ? null : name })}>{name}</button>
      ))}
      <span class="faint small-text">Drag over a chart to look closer, double-click to see all of it.</span>
    </div>
  );
}
