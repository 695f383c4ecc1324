/** From a plan to a job: the rows, what it may cost and take, and the button that submits it. */

import { useState } from "preact/hooks";

import { ApiError, post } from "../../api/client";
import { may } from "../../api/session";
import { Command } from "../../parts/command";
import { go, href } from "../../route";
import { TextField } from "../settings/field";
import { bodyOf, commandOf, fieldAbout, isOfHub, NO_WISHES, wrongOf, type DataReport, type Wishes, type Wrong } from "./recipe";
import type { Fields } from "./request";
import { RowsField } from "./rows-field";

interface SubmitFormProps {
  fields: Fields;
  config: string;
}

export function SubmitForm({ fields, config }: SubmitFormProps) {
  const [wishes, setWishes] = useState<Wishes>({ ...NO_WISHES, deadline: fields.deadline });
  const [data, setData] = useState<DataReport | null>(null);
  const [state, setState] = useState<{ busy: boolean; error: Error | null }>({ busy: false, error: null });
  if (!may("submit")) return <p class="faint">A key with scope submit may submit this here.</p>;
  const here = wrongOf(fields, config, wishes);
  const named = !config.trim() && isOfHub(fields.model.trim());
  const wrong: Wrong = { ...here, hub: wishes.hub.trim() ? here.hub : undefined, ...told(state.error) };
  const ready = Boolean(data?.sha256) && Object.keys(here).length === 0 && !state.busy;
  const set = (name: keyof Wishes) => (value: string) => {
    setWishes((before) => ({ ...before, [name]: value }));
    setState((before) => ({ ...before, error: null }));
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!ready) return;
    setState({ busy: true, error: null });
    try {
      const job = await post<{ id: string }>("v1/finetunes", bodyOf(fields, config, wishes, data!));
      go(href("jobs", job.id));
    } catch (error) {
      setState({ busy: false, error: error as Error });
    }
  };
  return (
    <section class="plan-submit" aria-labelledby="plan-submit">
      <h2 id="plan-submit">Submit it</h2>
      <form onSubmit={(event) => void submit(event)}>
        <RowsField report={data} found={(report) => { setData(report); setState({ busy: false, error: null }); }} wrong={wrong.data ?? null} />
        <Details wishes={wishes} set={set} wrong={named ? wrong : { ...wrong, hub: wrong.hub ?? wrong.model }} named={named} />
        <OfPlan wrong={named ? wrong : { ...wrong, model: undefined }} />
        {state.error && !told(state.error) && <p class="bad" role="alert">{state.error.message}</p>}
        <div class="plan-submit-line">
          <button type="submit" class="primary" disabled={!ready}>{state.busy ? "Submitting …" : "Submit the job"}</button>
          <Command text={commandOf(fields, config, wishes, data?.name ?? "")} />
        </div>
      </form>
    </section>
  );
}

function told(error: Error | null): Wrong | null {
  const field = error instanceof ApiError ? fieldAbout(error.detail.param) : null;
  return field === null ? null : { [field]: error!.message };
}

interface DetailsProps {
  wishes: Wishes;
  set: (name: keyof Wishes) => (value: string) => void;
  wrong: Wrong;
  named: boolean; // the plan's model is one of the hub
}

function Details({ wishes, set, wrong, named }: DetailsProps) {
  const field = (name: keyof Wishes, label: string, hint: string, placeholder?: string) => (
    <div><TextField label={label} hint={hint} placeholder={placeholder} value={wishes[name]} set={set(name)} wrong={wrong[name] ?? null} /></div>
  );
  return (
    <div class="plan-fields">
      {!named && field("hub", "Model of the hub", "what the machines fetch", "meta-llama/Meta-Llama-3-8B")}
      {field("name", "Name", "of the job", "that of its app")}
      {field("epochs", "Epochs", "how often all rows are seen", "3")}
      {field("held_out", "Held out", "share of rows to measure with", "0.1")}
      {field("deadline", "Its deadline", "6h, 90m, or an instant", "a day")}
      {field("max_cost", "Cost limit", "dollars; it pauses there", "no limit")}
      {field("max_duration", "Time limit", "it is cancelled then", "no limit")}
    </div>
  );
}

const ABOVE = ["config", "model", "method", "batch", "sequence", "precision", "optimizer", "rank", "steps", "nodes", "loss"] as const;

/** What is wrong with fields of the plan above, which has to be asked anew with others. */
function OfPlan({ wrong }: { wrong: Wrong }) {
  const list = ABOVE.filter((name) => wrong[name]);
  return <>{list.map((name) => <p key={name} class="bad" role="alert">{name}: {wrong[name]}</p>)}</>;
}
