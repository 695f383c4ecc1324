import { useId, useState } from "preact/hooks";

import { ApiError, post } from "../../api/client";
import { may } from "../../api/session";
import { Command } from "../../parts/command";
import type { Decision } from "./decisions";
import { ReplayResult } from "./replay-result";
import { commandOf, POLICIES, rulesOf, type Replay } from "./replays";

interface Asked {
  busy: boolean;
  found: Replay | null;
  error: Error | null;
}

/** Decide again on exactly what was seen. It changes nothing, so nobody is asked whether they are sure. */
export function ReplayView({ decision }: { decision: Decision }) {
  const [policy, setPolicy] = useState("");
  const [text, setText] = useState("");
  const [asked, setAsked] = useState<Asked>({ busy: false, found: null, error: null });
  const { rules, wrong } = rulesOf(text);
  if (!may("read")) return null;
  const submit = async (event: Event) => {
    event.preventDefault();
    setAsked((before) => ({ ...before, busy: true, error: null }));
    try {
      const found = await post<Replay>(`v1/ticks/${decision.id}/replay`, { policy: policy || null, rules }, { idempotencyKey: undefined });
      setAsked({ busy: false, found, error: null });
    } catch (error) {
      setAsked({ busy: false, found: null, error: error as Error });
    }
  };
  return (
    <section class="replay">
      <h2>Decide again</h2>
      <p class="faint small-text">On exactly what was seen then. Nothing is enacted.</p>
      <form class="replay-form" onSubmit={(event) => void submit(event)}>
        <PolicyField policy={policy} then={decision.policy} set={setPolicy} error={about(asked.error, "policy")} />
        <RulesField text={text} set={setText} error={wrong === null ? about(asked.error, "rules") : `${wrong} is no rule with a number: move_gain=1.5`} />
        <button type="submit" class="primary" disabled={asked.busy || wrong !== null}>{asked.busy ? "Deciding …" : "Decide again"}</button>
      </form>
      <p><Command text={commandOf(decision.id, policy || null, rules)} /></p>
      {asked.error && !about(asked.error, "policy") && !about(asked.error, "rules") && <p class="bad" role="alert">{asked.error.message}</p>}
      {asked.found && <ReplayResult decision={decision} replay={asked.found} />}
    </section>
  );
}

/** What the service says of one field, or of something in it. */
function about(error: Error | null, field: string): string | null {
  const param = error instanceof ApiError ? error.detail.param : null;
  return param === field || param?.startsWith(`${field}.`) ? error!.message : null;
}

function PolicyField({ policy, then, set, error }: { policy: string; then: string; set: (name: string) => void; error: string | null }) {
  const id = useId();
  return (
    <div>
      <label for={id}>Policy</label>
      <select id={id} value={policy} aria-invalid={error !== null} aria-describedby={`${id}-note`} onChange={(event) => set(event.currentTarget.value)}>
        <option value="">{then}, as then</option>
        {POLICIES.filter((one) => one !== then).map((one) => <option key={one} value={one}>{one}</option>)}
      </select>
      <small id={`${id}-note`} class="bad">{error}</small>
    </div>
  );
}

function RulesField({ text, set, error }: { text: string; set: (text: string) => void; error: string | null }) {
  const id = useId();
  return (
    <div>
      <label for={id}>Rules that differ</label>
      <input id={id} value={text} placeholder="move_gain=1.5 patience_ms=30000" spellcheck={false} aria-invalid={error !== null} aria-describedby={`${id}-note`}
        onInput={(event) => set(event.currentTarget.value)} />
      <small id={`${id}-note`} class={error ? "bad" : "faint"}>{error ?? "of the policy allpass; empty: as they were"}</small>
    </div>
  );
}
