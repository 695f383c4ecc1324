/** Policies on a workload, without renting anything: what they would have cost, and whom they would have made wait. */

import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError, post } from "../../api/client";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { route, setQuery } from "../../route";
import { SimulateForm } from "./form";
import { bodyOf, commandOf, fieldAbout, fieldsOf, inAddress, wrongOf, type Fields, type Wrong } from "./request";
import { SimulationResult } from "./result";
import type { Simulation, TraceReport } from "./shapes";
import "../plan/plan.css";
import "../control/control.css";
import "../costs/costs.css";
import "./simulate.css";

interface State {
  busy: boolean;
  found: Simulation | null;
  error: Error | null;
}

export function Simulate() {
  const fields = fieldsOf(route.value.query);
  const [own, setOwn] = useState(false);
  const [trace, setTrace] = useState<TraceReport | null>(null);
  const [state, setState] = useState<State>({ busy: false, found: null, error: null });
  const asking = useRef<AbortController | null>(null);
  useEffect(() => () => asking.current?.abort(), []); // its process ends with the request
  const here = wrongOf(fields, own ? trace : null);
  const wrong: Wrong = { ...here, ...told(state.error) };
  const set = (name: keyof Fields) => (value: string) => {
    setQuery(inAddress({ ...fields, [name]: value }));
    setState((before) => ({ ...before, error: null }));
  };
  const run = async () => {
    const abort = (asking.current = new AbortController());
    setState((before) => ({ ...before, busy: true, error: null }));
    try {
      const found = await post<Simulation>("v1/simulations", bodyOf(fields, own ? trace : null), { idempotencyKey: undefined, signal: abort.signal });
      setState({ busy: false, found, error: null });
    } catch (error) {
      if (!abort.signal.aborted) setState({ busy: false, found: null, error: error as Error });
    }
  };
  return (
    <div class="simulate">
      <div class="control-title">
        <h1>Simulate</h1>
        <p class="faint">The functions that decide here, on a clock that runs ahead. Nothing is rented.</p>
        <Command text={commandOf(fields, own ? trace && `${trace.name}.csv` : null)} />
      </div>
      <SimulateForm fields={fields} set={set} wrong={wrong} own={own} setOwn={setOwn} trace={trace} setTrace={setTrace} busy={state.busy} run={() => void run()}
        ready={Object.keys(here).length === 0 && (!own || trace !== null)} />
      {state.error && !told(state.error) && <p class="bad" role="alert">{state.error.message}</p>}
      {state.found ? <SimulationResult simulation={state.found} /> : !state.busy && <Empty title="Which policies, on which jobs?"><p>A generated workload takes some seconds. Large ones are for <code>allpass simulate</code>.</p></Empty>}
      {state.busy && <p class="faint" role="status">Simulating: it is bounded, and ends when you leave the page.</p>}
    </div>
  );
}

function told(error: Error | null): Wrong | null {
  const field = error instanceof ApiError && error.status === 422 ? fieldAbout(error.detail.param) : null;
  return field === null ? null : { [field]: error!.message };
}
