import { may } from "../../api/session";
import { SelectField, TextField } from "../settings/field";
import { CHOICES, KNOWN, policiesOf, type Fields, type Wrong } from "./request";
import type { TraceReport } from "./shapes";
import { TraceField } from "./trace-field";

export interface SimulateFormProps {
  fields: Fields;
  set: (name: keyof Fields) => (value: string) => void;
  wrong: Wrong;
  own: boolean; // a trace of one's own in place of a generated workload
  setOwn: (own: boolean) => void;
  trace: TraceReport | null;
  setTrace: (trace: TraceReport | null) => void;
  busy: boolean;
  ready: boolean;
  run: () => void;
}

export function SimulateForm(props: SimulateFormProps) {
  const { fields, set, wrong, own, setOwn, trace, setTrace, busy, ready, run } = props;
  const submit = (event: Event) => {
    event.preventDefault();
    if (ready) run();
  };
  const choice = (name: keyof typeof CHOICES, label: string, hint: string) => (
    <div><SelectField label={label} hint={hint} value={fields[name]} set={set(name)} wrong={wrong[name] ?? null} options={CHOICES[name].map((one) => ({ value: one, text: one }))} /></div>
  );
  const text = (name: keyof Fields, label: string, hint: string, placeholder = "") => (
    <div><TextField numeric={/^\d+$/.test(placeholder)} label={label} hint={hint} placeholder={placeholder} value={fields[name]} set={set(name)} wrong={wrong[name] ?? null} /></div>
  );
  return (
    <form class="plan-form" onSubmit={submit}>
      <div class="plan-fields simulate-fields">
        <div><SelectField label="Workload" hint="jobs to play" value={own ? "own" : "generated"} set={(value) => setOwn(value === "own")}
          options={[{ value: "generated", text: "generated" }, ...(may("submit") ? [{ value: "own", text: "a trace of mine" }] : [])]} /></div>
        {own ? <TraceField report={trace} found={setTrace} wrong={wrong.trace ?? null} /> : <>{choice("like", "Like", "whose cluster")}{text("jobs", "Jobs", "how many", "200")}{text("draw", "Draw", "the same number, the same jobs", "0")}</>}
        {choice("world", "World", "companies and machines")}
        {text("seeds", "Seeds", "figures are means", "1")}
      </div>
      <Policies chosen={policiesOf(fields)} set={set("policies")} wrong={wrong.policies ?? null} />
      <details class="plan-more" open={["market", "gpus", "knowledge", "deadlines", "move", "limit", "pools"].some((name) => wrong[name as keyof Fields])}>
        <summary>Assumptions</summary>
        <div class="plan-fields simulate-fields">
          {choice("market", "Market", "of prices")}
          {choice("gpus", "GPUs", "one each, or as the trace says")}
          {text("knowledge", "Knowledge", "of run times: submit:0.2, none", own ? "submit:0.2" : "after:60:0.2")}
          {text("deadlines", "Deadlines", "times the run time, or 6h", "1-10")}
          {text("move", "A move takes", "seconds", own ? "84" : "5")}
          {text("limit", "Nodes at most", "serverless apart", "no limit")}
          {text("pools", "Machines of my own", "8xA100, or lab:2x8xH100@0.40", "none")}
        </div>
      </details>
      <button type="submit" class="primary" disabled={!ready || busy}>{busy ? "Simulating …" : "Simulate"}</button>
    </form>
  );
}

function Policies({ chosen, set, wrong }: { chosen: readonly string[]; set: (text: string) => void; wrong: string | null }) {
  const toggle = (name: string, on: boolean) => set(on ? [...chosen, name].join(",") : chosen.filter((one) => one !== name).join(","));
  const others = chosen.filter((name) => !(KNOWN as readonly string[]).includes(name));
  return (
    <fieldset class="scopes simulate-policies">
      <legend>Policies {wrong && <span class="bad" role="alert">{wrong}</span>}</legend>
      {[...KNOWN, ...others].map((name) => (
        <label key={name} class="check"><input type="checkbox" checked={chosen.includes(name)} onChange={(event) => toggle(name, event.currentTarget.checked)} /> {name}</label>
      ))}
    </fieldset>
  );
}
