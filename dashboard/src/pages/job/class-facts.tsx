import { all, get } from "../../api/client";
import { isOver, type Job } from "../../api/jobs";
import { Command } from "../../parts/command";
import { useReading } from "../../parts/reading";
import { classWords, poolWords, standbyWords, windowWords, type PoolFacts, type Standby, type StandbyWindow } from "./class-words";

const ANEW_MS = 15_000;

/** Whether others may have its GPUs: its class, what pools make of that, and until when it stands by. */
export function ClassFacts({ job }: { job: Job }) {
  const priorityClass = String(job.template.priority_class ?? "guaranteed");
  const path = `v1/jobs/${encodeURIComponent(job.id)}`;
  const every = isOver(job) ? 0 : ANEW_MS;
  const pools = useReading("pools", (signal) => all<PoolFacts>("v1/pools", { signal }));
  const standbys = useReading(`standbys ${job.id} ${job.status}`, (signal) => get<{ items: Standby[] }>(`${path}/standbys`, { signal }), every);
  const windows = useReading(`windows ${job.id}`, (signal) => get<{ items: StandbyWindow[] }>(`${path}/standby/windows`, { signal }), every);
  const standsBy = standbyWords(standbys.value?.items[0]);
  const comingAgain = (windows.value?.items ?? []).filter((window) => window.ended_at === null);
  return (
    <section aria-labelledby="class">
      <h2 id="class">Class</h2>
      <dl class="facts">
        <dt>Class</dt><dd>{classWords(priorityClass)}</dd>
        {poolWords(priorityClass, pools.value ?? []).map((words) => <dd key={words}>{words}</dd>)}
        {standsBy && <><dt>Stands by</dt><dd>{standsBy}</dd></>}
        {standsBy && !isOver(job) && <dd><Command text={`allpass standby end ${job.id}`} /></dd>}
        {comingAgain.length > 0 && <dt>Stands by again</dt>}
        {comingAgain.map((window) => <dd key={window.id}>{windowWords(window)}</dd>)}
      </dl>
    </section>
  );
}
