/** What a job would need and cost, asked before anything is rented. The address has the question. */

import { useState } from "preact/hooks";

import { ApiError, post } from "../../api/client";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { route, setQuery } from "../../route";
import { PlanForm } from "./form";
import { commandOf, fieldsOf, inAddress, isWhole, requestOf, type Fields } from "./request";
import { Result } from "./result";
import type { Plan } from "./shapes";
import { SubmitForm } from "./submit-form";
import "./plan.css";

const OF_FIELDS = new Set(["model", "config", "method", "batch", "sequence", "precision", "optimizer", "rank", "steps", "nodes", "soft_deadline", "loss", "checkpointing"]);

export function PlanPage() {
  const fields = fieldsOf(route.value.query);
  const [config, setConfig] = useState("");
  const request = requestOf(fields, config);
  const ready = isWhole(request);
  const body = JSON.stringify(request.body);
  const read = useReading(ready ? `plan ${body}` : "", (signal) => (ready ? post<Plan>("v1/jobs/plan", request.body, { signal, idempotencyKey: undefined }) : Promise.resolve(null)));
  const about = read.error instanceof ApiError ? read.error.detail.param?.split(".")[0] ?? null : null;
  const field = about === "soft_deadline" ? "deadline" : about;
  const wrong = { ...request.wrong, ...(field !== null && { [field]: read.error!.message }) };
  const ask = (next: Fields, text: string) => {
    setConfig(text);
    setQuery(inAddress(next), { replace: false });
    read.again();
  };
  return (
    <div class="plan">
      <div class="control-title">
        <h1>Plan</h1>
        <p class="faint">What a job would need and cost, on every GPU that can be rented now. Nothing is rented.</p>
        <Command text={commandOf(fields, config)} />
      </div>
      <PlanForm given={fields} config={config} wrong={wrong} ask={ask} />
      <Answer ready={ready} plan={read.value} error={about !== null && OF_FIELDS.has(about) ? null : read.error} told={read.error !== null} again={read.again} />
      {ready && read.value && !read.error && <SubmitForm key={JSON.stringify(request.body)} fields={fields} config={config} />}
    </div>
  );
}

interface AnswerProps {
  ready: boolean;
  plan: Plan | null;
  error: Error | null; // that no field has
  told: boolean; // an error stands at a field, or here
  again: () => void;
}

function Answer({ ready, plan, error, told, again }: AnswerProps) {
  if (!ready) {
    return (
      <Empty title="Which model, and how is it trained?">
        <p>The memory of each layout, a step's time and the whole cost are predicted by the same tables as when the job is submitted.</p>
      </Empty>
    );
  }
  if (error) return <Failure error={error} again={again} />;
  if (told) return null;
  return plan ? <Result plan={plan} /> : <div class="plan-wait"><Loading what="Asking what it would need" /></div>;
}
