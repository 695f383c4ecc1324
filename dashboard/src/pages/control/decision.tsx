/** One decision: what was seen, what was chosen, and what another policy would have chosen. */

import { useState } from "preact/hooks";

import { ApiError, get, post } from "../../api/client";
import type { Decision, PlannedAction, Replay } from "../../api/control";
import { count, duration, hourly } from "../../format";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { FiguresRow } from "../../parts/figures-row";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { href } from "../../route";
import { inWords } from "./course";

export function DecisionPage({ id }: { id: string }) {
  const { value, error, again } = useReading(`tick ${id}`, (signal) => get<Decision>(`v1/ticks/${encodeURIComponent(id)}`, { signal }));
  if (error instanceof ApiError && [404, 422].includes(error.status)) {
    return <><h1>Decision</h1><Empty title={error.message}><p><a href={href("control")}>All decisions</a></p></Empty></>;
  }
  if (error) return <Failure error={error} again={again} />;
  if (!value) return <Loading what="Reading the decision" />;
  return (
    <div class="control">
      <p class="faint"><a href={href("control")}>Control</a> › decision</p>
      <h1>Decision {value.id}</h1>
      <p>Taken <Time at={value.at} /> by {value.policy}, since: {value.trigger}. It took {count(value.duration_ms)} ms.</p>
      <Seen decision={value} />
      <h2>Chosen: {inWords(value.actions)}</h2>
      {value.reasons.length ? <ul>{value.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul> : <p class="faint">Nothing for jobs and machines of this project.</p>}
      <Again id={value.id} policy={value.policy} />
    </div>
  );
}

function Seen({ decision }: { decision: Decision }) {
  const or = (value: number | null, show: (value: number) => string) => (value === null ? "not measured" : show(value));
  return (
    <FiguresRow figures={[
      ["Pressure p", or(decision.pressure, (p) => p.toFixed(2))],
      ["Serverless budget F", or(decision.serverless_budget_s, (s) => duration(s * 1000))],
      ["Capacity C", or(decision.capacity_gpus, (gpus) => `${count(gpus)} GPUs`)],
      ["Demand D", or(decision.demand_gpu_s, (s) => `${(s / 3600).toFixed(1)} GPU h`)],
      ["Jobs that waited", count(decision.jobs_waiting)],
    ]} />
  );
}

/** Decides again on what was seen then. Nothing of it is carried out. */
function Again({ id, policy }: { id: number; policy: string }) {
  const [name, setName] = useState(policy);
  const [replay, setReplay] = useState<Replay | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const ask = async (event: Event) => {
    event.preventDefault();
    setError(null);
    try {
      setReplay(await post<Replay>(`v1/ticks/${id}/replay`, { policy: name.trim() || null }));
    } catch (failed) {
      setReplay(null);
      setError(failed as Error);
    }
  };
  return (
    <section aria-label="Decide again">
      <h2>Decide again</h2>
      <form class="choices" onSubmit={(event) => void ask(event)}>
        <label>by the policy <input value={name} aria-invalid={error !== null} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <button type="submit">Decide again</button>
      </form>
      <p class="faint">On what was seen then; nothing of it is carried out.</p>
      {error && <p class="bad" role="alert">{error.message}</p>}
      {replay && <Compared replay={replay} />}
    </section>
  );
}

function Compared({ replay }: { replay: Replay }) {
  return (
    <div role="status">
      {replay.caveat && <p class="wait">{replay.caveat}</p>}
      <p>{replay.same ? `${replay.policy_now} chooses the same.` : `${replay.policy_now} chooses otherwise than ${replay.policy_then} did.`}</p>
      <Actions title="Chosen then and now" actions={replay.both} />
      <Actions title={`Only then, by ${replay.policy_then}`} actions={replay.only_then} />
      <Actions title={`Only now, by ${replay.policy_now}`} actions={replay.only_now} />
    </div>
  );
}

function Actions({ title, actions }: { title: string; actions: readonly PlannedAction[] }) {
  if (!actions.length) return null;
  return (
    <>
      <h3>{title}</h3>
      <ul>
        {actions.map((one, index) => (
          <li key={index}>{one.kind} {one.job_id && <a class="mono" href={href("jobs", one.job_id)}>{one.job_id}</a>} {one.offer} {one.price_per_hour !== null && hourly(one.price_per_hour)}: {one.reason}</li>
        ))}
      </ul>
    </>
  );
}
