import { get } from "../../api/client";
import { isOver, type Job, type Timeline } from "../../api/jobs";
import { money } from "../../format";
import { Command } from "../../parts/command";
import { useReading } from "../../parts/reading";
import { notes, partsOf, verdictOf, type CostPart, type UsageLine } from "./cost-parts";

const ANEW_MS = 30_000;

/** What it cost by part, beside what it would have been without moving. */
export function Cost({ job, timeline }: { job: Job; timeline: Timeline }) {
  const query = { from: job.submitted_at, limit: 1000 };
  const read = (signal: AbortSignal) => get<{ lines: UsageLine[] }>("v1/usage", { query, signal });
  const usage = useReading(`usage ${job.id}`, read, isOver(job) ? 0 : ANEW_MS);
  const parts = partsOf(job.id, timeline.cost, job.idle_cost, usage.value?.lines ?? []);
  const verdict = verdictOf(timeline, job.idle_cost, isOver(job));
  const most = Math.max(1, parts.reduce((sum, part) => sum + part.cost, 0), timeline.all_serverless);
  return (
    <>
      <h2>What it costs</h2>
      <table class="cost">
        <tbody>
          {parts.filter((part) => part.kind !== "idle").map((part) => <Row key={part.kind} part={part} most={most} />)}
          <tr class="sum"><th>The job</th><td /><td class="number">{money(timeline.cost)}</td></tr>
          {parts.filter((part) => part.kind === "idle").map((part) => <Row key={part.kind} part={part} most={most} />)}
          {timeline.all_serverless > 0 && <Row part={{ name: "All serverless", cost: timeline.all_serverless, kind: "run", what: "the same work without ever leaving serverless" }} most={most} serverless />}
        </tbody>
      </table>
      <p class={`verdict ${verdict.kind}`}>{verdict.text}</p>
      {notes(timeline).map((note) => <p key={note} class="faint small-text">{note}</p>)}
      <p><Command text={`allpass show ${job.id}`} /></p>
    </>
  );
}

function Row({ part, most, serverless = false }: { part: CostPart; most: number; serverless?: boolean }) {
  return (
    <tr title={part.what}>
      <th scope="row">{part.name}</th>
      <td><div class={`cost-bar ${serverless ? "serverless" : part.kind}`} style={{ width: `${(100 * part.cost) / most}%` }} /></td>
      <td class="number">{money(part.cost)}</td>
    </tr>
  );
}
