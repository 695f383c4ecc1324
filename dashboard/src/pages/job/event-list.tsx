import { useMemo } from "preact/hooks";

import type { JobEvent } from "../../api/jobs";
import { absolute, count } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { Time } from "../../parts/time";
import { route, setQuery } from "../../route";
import type { TabProps } from ".";
import { markKind } from "./story";

const SHOWN = 300;

/** All that happened to it and why, newest first. */
export function EventList({ job, events }: TabProps) {
  const q = route.value.query.get("q") ?? "";
  const all = route.value.query.get("all") === "1";
  const found = useMemo(() => fitting(events.list, q), [events.list, q]);
  if (!events.read) return events.error ? <Failure error={events.error} /> : <Loading what="Reading the events" />;
  const shown = all ? found : found.slice(0, SHOWN);
  return (
    <div class="events">
      <div class="filters-row">
        <input type="search" class="search" aria-label="Search events" placeholder="Search events" value={q} onInput={(event) => setQuery({ q: event.currentTarget.value || null })} />
        <span class="faint" role="status">{count(found.length)} events</span>
        <Command text={`allpass events ${job.id}`} />
      </div>
      {!found.length && <Empty title="No event holds that." />}
      <table class="event-table">
        <thead class="hidden"><tr><th>When</th><th>What</th><th>In words</th></tr></thead>
        <tbody>{shown.map((event) => <Row key={event.position} event={event} />)}</tbody>
      </table>
      {shown.length < found.length && <p><button type="button" onClick={() => setQuery({ all: "1" })}>Show all {count(found.length)}</button></p>}
    </div>
  );
}

const COLOURS = { checkpoint: "good", move: "", restart: "wait", fault: "bad" } as const;

function Row({ event }: { event: JobEvent }) {
  const kind = markKind(event.kind);
  return (
    <tr>
      <td class="number faint" title={absolute(event.at)}><Time at={event.at} /></td>
      <td class={`event-kind ${kind ? COLOURS[kind] : "faint"}`}>{event.kind.replaceAll("_", " ")}</td>
      <td class="event-message">{event.message}</td>
    </tr>
  );
}

function fitting(list: readonly JobEvent[], q: string): JobEvent[] {
  const text = q.toLowerCase();
  return list.filter((event) => !text || event.message.toLowerCase().includes(text) || event.kind.replaceAll("_", " ").includes(text)).reverse();
}
