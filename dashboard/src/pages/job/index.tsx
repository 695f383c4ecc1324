/** One job: how far it is, where it has been and why, what it costs, what it learns, what it says, what it leaves. */

import { useEffect, useRef } from "preact/hooks";

import { ApiError, get } from "../../api/client";
import { isOver, type Job as JobModel } from "../../api/jobs";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { useEvents, useNews, type Events } from "../../parts/live-events";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { href, route } from "../../route";
import { Checkpoints } from "./checkpoints";
import { EventList } from "./event-list";
import { Files } from "./files";
import { Header } from "./header";
import { Log } from "./log";
import { Metrics } from "./metrics";
import { Overview } from "./overview";
import { Parameters } from "./parameters";
import "./job.css";

export interface TabProps {
  job: JobModel;
  events: Events;
  changed: () => void; // what is shown may be out of date: read it again
}

const TABS = [
  { name: "overview", title: "Overview", Tab: Overview },
  { name: "metrics", title: "Metrics", Tab: Metrics },
  { name: "log", title: "Log", Tab: Log },
  { name: "checkpoints", title: "Checkpoints", Tab: Checkpoints },
  { name: "files", title: "Files", Tab: Files },
  { name: "parameters", title: "Parameters", Tab: Parameters },
  { name: "events", title: "Events", Tab: EventList },
] as const;

const ANEW_MS = 4_000;

export function Job({ id }: { id: string }) {
  const over = useRef(false);
  const reading = useReading(`job ${id}`, (signal) => get<JobModel>(`v1/jobs/${encodeURIComponent(id)}`, { signal }), over.current ? 0 : ANEW_MS);
  const job = reading.value;
  over.current = job !== null && isOver(job);
  useEffect(() => {
    document.title = job ? `${job.name}: ${job.status}` : "Allpass";
    return () => void (document.title = "Allpass");
  }, [job?.name, job?.status]);
  if (!job) return <NotRead error={reading.error} again={reading.again} id={id} />;
  return <Shown job={job} error={reading.error} again={reading.again} />;
}

function Shown({ job, error, again }: { job: JobModel; error: Error | null; again: () => void }) {
  const events = useEvents(job.id, !isOver(job));
  useNews(String(events.list.length), events.read, again);
  const tab = TABS.find((one) => one.name === route.value.tab) ?? TABS[0];
  const tabs = useRef<HTMLElement>(null);
  useEffect(() => tabs.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [tab]);
  return (
    <div class={`job-page ${tab.name}`}>
      <Header job={job} changed={again} />
      {error && <p class="bad" role="status">Not up to date: {error.message}</p>}
      <nav ref={tabs} class="tabs" aria-label="Of this job">
        {TABS.map((one) => <a key={one.name} href={href("jobs", job.id, one.name === "overview" ? null : one.name)} aria-current={one === tab ? "page" : undefined}>{one.title}</a>)}
      </nav>
      <tab.Tab job={job} events={events} changed={again} />
    </div>
  );
}

function NotRead({ error, again, id }: { error: Error | null; again: () => void; id: string }) {
  if (!error) return <Loading what="Reading the job" />;
  if (!(error instanceof ApiError) || error.status !== 404) return <Failure error={error} again={again} />;
  return (
    <Empty title="There is no such job in this project.">
      <p class="mono faint">{id}</p>
      <p><a href={href("jobs")}>All jobs</a></p>
    </Empty>
  );
}
