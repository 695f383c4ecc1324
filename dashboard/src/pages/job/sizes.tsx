import { get } from "../../api/client";
import { isOver, type Job, type JobSize } from "../../api/jobs";
import { absolute, count, duration, hourly } from "../../format";
import { Command } from "../../parts/command";
import { useReading } from "../../parts/reading";
import { now } from "../../parts/time";
import { href } from "../../route";
import { endOf, hasChanged, MOST_ROWS, stepsOf, stepWords } from "./size-steps";
import "./sizes.css";

const ANEW_MS = 10_000;

/** How many GPUs it had, over time; nothing for a job that kept those that it began with. */
export function Sizes({ job }: { job: Job }) {
  const read = (signal: AbortSignal) => get<{ data: JobSize[] }>(`v1/jobs/${encodeURIComponent(job.id)}/sizes`, { query: { limit: 1000 }, signal });
  const sizes = useReading(`sizes ${job.id}`, read, isOver(job) ? 0 : ANEW_MS).value?.data ?? [];
  if (!hasChanged(sizes)) return null;
  return (
    <section aria-labelledby="sizes">
      <h2 id="sizes">Its GPUs over time</h2>
      <div class="sizes-field" aria-hidden="true">
        {stepsOf(sizes, now.value).map(({ size, left, width, height }, at) => (
          <i key={at} class={`sizes-step ${size.why}`} style={{ left: `${left}%`, width: `${width}%`, height: `${height}%` }} title={`${size.gpus} × ${size.gpu_type} from ${absolute(size.from_at)}: ${size.text}`}>{width > 5 && <span>{size.gpus}</span>}</i>
        ))}
      </div>
      {job.template.resize_by === "restart" && <p class="faint small-text">Not exact: its GPUs change by restarting it from its newest checkpoint, and its batch follows them.</p>}
      <Rows sizes={sizes.slice(-MOST_ROWS)} />
      {sizes.length > MOST_ROWS && <p class="faint small-text">The newest {MOST_ROWS} of {count(sizes.length)}.</p>}
      <p><a href={href("costs", null, null, { by: "size", job: job.id, range: "all" })}>What each number cost</a></p>
      <p><Command text={`allpass cost --by size --job ${job.id}`} /></p>
    </section>
  );
}

function Rows({ sizes }: { sizes: readonly JobSize[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Its sizes">
      <table class="sizes">
        <thead><tr><th class="number">GPUs</th><th>From</th><th class="number">For</th><th class="number more" title="as jobs of its app were measured with so many GPUs">A step</th><th class="number more">Price</th><th>Why</th></tr></thead>
        <tbody>
          {sizes.map((one) => (
            <tr key={`${one.run_id} ${one.from_at} ${one.gpus}`}>
              <td class="number">{one.gpus}</td>
              <td>{absolute(one.from_at)}</td>
              <td class="number">{duration(endOf(one, now.value) - Date.parse(one.from_at))}</td>
              <td class="number more">{stepWords(one)}</td>
              <td class="number more">{hourly(one.price_per_hour)}</td>
              <td class="story-end">{one.text}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
