import { Fragment } from "preact";

import { get } from "../../api/client";
import { isOver, type Explanation, type Job, type JobEvent, type Timeline } from "../../api/jobs";
import { bytes, count, duration } from "../../format";
import { Failure } from "../../parts/failure";
import { useNews } from "../../parts/live-events";
import { Loading } from "../../parts/loading";
import { useReading, type Reading } from "../../parts/reading";
import { Time, now } from "../../parts/time";
import type { TabProps } from ".";
import { Cost } from "./cost";
import { ClassFacts } from "./class-facts";
import { Explained } from "./explained";
import { safeLink } from "./links";
import { Sizes } from "./sizes";
import { storyOf } from "./story";
import { StoryTable } from "./story-table";
import { TimelineView } from "./timeline";

const ANEW_MS = 8_000;

export function Overview({ job, events }: TabProps) {
  const every = isOver(job) ? 0 : ANEW_MS;
  const path = `v1/jobs/${encodeURIComponent(job.id)}`;
  const timeline = useReading(`timeline ${job.id}`, (signal) => get<Timeline>(`${path}/timeline`, { signal }), every);
  const explained = useReading(`explain ${job.id}`, (signal) => get<Explanation>(`${path}/explain`, { signal }), every);
  useNews(`${job.status} ${events.list.length}`, events.read, () => {
    timeline.again();
    explained.again();
  });
  return (
    <div class="overview">
      <LastWords job={job} events={events.list} />
      <Notes job={job} />
      {timeline.value
        ? <Way job={job} timeline={timeline.value} events={events.list} />
        : <NotYet reading={timeline} what="Reading where it has been" />}
      <Sizes job={job} />
      <div class="columns">
        <section>{explained.value ? <Explained told={explained.value} /> : <NotYet reading={explained} what="Asking why" />}</section>
        <section>{timeline.value && <Cost job={job} timeline={timeline.value} />}</section>
      </div>
      <Facts job={job} />
      <ClassFacts job={job} />
    </div>
  );
}

function NotYet({ reading, what }: { reading: Reading<unknown>; what: string }) {
  return reading.error ? <Failure error={reading.error} again={reading.again} /> : <Loading what={what} />;
}

function Way({ job, timeline, events }: { job: Job; timeline: Timeline; events: readonly JobEvent[] }) {
  const story = storyOf(job, timeline.stays, events, isOver(job) ? 0 : now.value);
  return (
    <section aria-labelledby="way">
      <h2 id="way">Where it has been</h2>
      <TimelineView job={job} story={story} />
      <p class="faint way-sum">Its code ran for {duration(timeline.running_ms)} and stood still for {duration(timeline.waiting_ms)}
        {job.moves > 0 && `, moved ${count(job.moves)}×`}{job.faults > 0 && `, lost its machine or process ${count(job.faults)}×`}.</p>
      <StoryTable story={story} stays={timeline.stays} />
    </section>
  );
}

/** Of a job that failed: what its own code said last. */
function LastWords({ job, events }: { job: Job; events: readonly JobEvent[] }) {
  if (job.status !== "failed") return null;
  const text = events.map((event) => event.data.last_lines).filter((one): one is string => typeof one === "string" && one.trim() !== "").at(-1);
  return text ? <section aria-labelledby="last-words"><h2 id="last-words">Its last words</h2><pre class="last-words">{text}</pre></section> : null;
}

/** What one should know before anything else goes wrong. */
function Notes({ job }: { job: Job }) {
  const { transfer } = job;
  const notes = [
    ...job.warnings,
    job.unsaved && `Its checkpoints are not kept: ${job.unsaved}`,
    job.not_movable,
    transfer && moved(transfer),
  ].filter(Boolean);
  return notes.length ? <ul class="notes">{notes.map((note) => <li key={note}>{note}</li>)}</ul> : null;
}

const MOVES = { read: "Reads", send: "Sends", fetch: "Fetches" } as const;

function moved({ kind, done_bytes, total_bytes, left_ms }: NonNullable<Job["transfer"]>): string {
  const left = left_ms ? `, ${duration(left_ms)} left` : "";
  return `${MOVES[kind]} a checkpoint: ${bytes(done_bytes)} of ${bytes(total_bytes)}${left}`;
}

function Facts({ job }: { job: Job }) {
  const links = Object.entries(job.links ?? {}).map(([name, url]) => [name, safeLink(url)] as const);
  return (
    <section aria-labelledby="facts">
      <h2 id="facts">Facts</h2>
      <dl class="facts">
        <dt>Submitted</dt><dd><Time at={job.submitted_at} /></dd>
        <dt>First step</dt><dd><Time at={job.started_at} /></dd>
        {job.ended_at && <><dt>Ended</dt><dd><Time at={job.ended_at} /></dd></>}
        <dt>Newest checkpoint</dt><dd>{job.checkpoint_step === null ? "none" : `step ${count(job.checkpoint_step)}`}</dd>
        {job.from_checkpoint_id && <><dt>Began with</dt><dd class="mono">{job.from_checkpoint_id}</dd></>}
        <dt>Begun again</dt><dd>{job.retries === null ? "once, after running out of memory, where more is offered" : `${job.retried} of ${job.retries} times`}</dd>
        {job.merge && <><dt>Trained with</dt><dd>{job.merge.partner_id}, {job.merge.mode}: {job.merge.reason}</dd></>}
        {Object.entries(job.labels).map(([name, value]) => <Fragment key={name}><dt>Label {name}</dt><dd>{value}</dd></Fragment>)}
        {links.map(([name, url]) => <Link key={name} name={name} url={url} told={job.links[name]} />)}
      </dl>
    </section>
  );
}

/** A link of another person's code: followed only where it leads to the web. */
function Link({ name, url, told }: { name: string; url: string | null; told: string | undefined }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{url ? <a href={url} target="_blank" rel="noopener noreferrer nofollow">{url}</a> : <span class="faint">{told}</span>}</dd>
    </>
  );
}
