/** One decision: what was seen, what was chosen and why, and what another policy would have made of the same. */

import { ApiError, get } from "../../api/client";
import { count, duration } from "../../format";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { href } from "../../route";
import { chose, gpuTime, isQuiet, ratio, seconds, strain, type Decision } from "./decisions";
import { ReplayView } from "./replay";

const TRIGGERS: Record<string, string> = {
  tick: "the interval of decisions was over", wake: "a moment had come that an earlier decision waited for",
  change: "something had changed", elected: "this process had become the leader",
};

export function OneDecision({ id }: { id: string }) {
  const known = /^[1-9]\d{0,15}$/.test(id);
  const { value, error, again } = useReading(`tick ${id}`, (signal) => (known ? get<Decision>(`v1/ticks/${id}`, { signal }) : Promise.reject(noSuch())));
  if (value) return <Shown decision={value} />;
  return (
    <div class="control">
      <h1>Decision {id}</h1>
      {!error ? <Loading what="Reading the decision" />
        : error instanceof ApiError && error.status === 404 ? <Gone /> : <Failure error={error} again={again} />}
    </div>
  );
}

function noSuch(): ApiError {
  return new ApiError(404, { code: "not_found", message: "There is no such decision.", param: null, request_id: "", retryable: false });
}

function Gone() {
  return (
    <Empty title="There is no such decision, or it is not kept any more.">
      <p>Decisions are kept for some days, as long as they do not take too much space.</p>
      <p><a href={href("control")}>The newest decisions</a></p>
    </Empty>
  );
}

function Shown({ decision }: { decision: Decision }) {
  return (
    <div class="control">
      <p class="job-way"><a href={href("control")}>Control</a></p>
      <div class="control-title">
        <h1>Decision {decision.id}</h1>
        <p class="faint"><Time at={decision.at} />, by policy <b>{decision.policy}</b>, in {decision.duration_ms < 1000 ? `${decision.duration_ms} ms` : duration(decision.duration_ms)}</p>
        <Neighbours id={decision.id} />
      </div>
      <div class="columns">
        <Seen decision={decision} />
        <Chosen decision={decision} />
      </div>
      <ReplayView decision={decision} />
    </div>
  );
}

/** Their numbers follow each other closely, and not without gaps: one that is missing says so. */
function Neighbours({ id }: { id: number }) {
  return (
    <span class="neighbours">
      {id > 1 && <a href={href("control", String(id - 1))}>← the one before</a>}
      <a href={href("control", String(id + 1))}>the one after →</a>
    </span>
  );
}

function Seen({ decision }: { decision: Decision }) {
  const state = strain(decision.pressure);
  const nodes = Object.entries(decision.nodes).filter(([, number]) => number > 0);
  return (
    <section>
      <h2>Seen</h2>
      <dl class="facts">
        <dt>Because of</dt><dd>{decision.trigger} <span class="faint">{TRIGGERS[decision.trigger] ?? ""}</span></dd>
        <dt>Pressure p</dt><dd><b class={state.kind}>{ratio(decision.pressure)}</b> <span class="faint">{state.text}</span></dd>
        <dt>Serverless budget F</dt><dd>{seconds(decision.serverless_budget_s)}</dd>
        <dt>Demand D</dt><dd>{gpuTime(decision.demand_gpu_s)}</dd>
        <dt>Capacity C</dt><dd>{decision.capacity_gpus === null ? "–" : `${count(decision.capacity_gpus)} GPUs`}</dd>
        <dt>Jobs waiting</dt><dd>{count(decision.jobs_waiting)}</dd>
        <dt>Machines</dt><dd>{nodes.length ? nodes.map(([tier, number]) => <span key={tier}><span class="whole"><span class={`tier ${tier}`}>{tier}</span> {count(number)}</span>{" "}</span>) : "none"}</dd>
      </dl>
    </section>
  );
}

function Chosen({ decision }: { decision: Decision }) {
  const { actions, reasons } = decision;
  const total = Object.values(actions).reduce((sum, one) => sum + one, 0);
  const others = total - reasons.length;
  return (
    <section>
      <h2>Chosen</h2>
      <p class="headline">{isQuiet(decision) ? "Nothing: all stays as it is" : chose(actions)}</p>
      {reasons.length > 0 && <ul class="sentences reasons">{reasons.map((one, at) => <li key={at}>{one}</li>)}</ul>}
      {others > 0 && <p class="faint">{count(others)} of them on jobs and machines of other projects.</p>}
    </section>
  );
}
