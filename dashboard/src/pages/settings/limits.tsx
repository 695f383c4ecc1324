import { useState } from "preact/hooks";

import { get, patch } from "../../api/client";
import { count, money } from "../../format";
import { announce } from "../../parts/announcer";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { TextField } from "./field";
import { FormDialog } from "./form-dialog";
import { Meter } from "./meter";
import { isOwner } from "./scopes";
import { NotAllowed, Read, Section } from "./section";
import type { Limits } from "./shapes";
import { limitChange } from "./words";

const ANEW_MS = 10_000;

/** What may be rented at companies that ask for real money, over all projects. */
export function LimitsView() {
  const what = "What the installation may rent at real providers, over all projects. Machines of this host and emulated ones do not count.";
  return (
    <Section title="Limits" what={what} command="allpass limits">
      {isOwner() ? <Shown /> : <NotAllowed scope="owner" what="Seeing the limits of the installation" />}
    </Section>
  );
}

function Shown() {
  const read = useReading("limits", (signal) => get<Limits>("v1/limits", { signal }), ANEW_MS);
  const [asking, setAsking] = useState(false);
  return (
    <Read from={read} what="Reading the limits">
      {(limits) => (
        <>
          <dl class="facts">
            <dt>Machines at once</dt>
            <dd><Meter used={limits.machines_rented} of={limits.machines} text={count} label="machines rented" /></dd>
            <dt>In a day of UTC</dt>
            <dd><Meter used={limits.spent_today} of={limits.per_day} text={money} label="spent today" /> <span class="faint">begins anew <Time at={limits.day_ends_at} /></span></dd>
            <dt>Real providers</dt>
            <dd>{limits.providers.join(", ") || "none is configured"}</dd>
          </dl>
          <p><button type="button" onClick={() => setAsking(true)}>Change the limits …</button></p>
          {asking && <LimitsDialog limits={limits} onClose={() => setAsking(false)} changed={read.again} />}
        </>
      )}
    </Read>
  );
}

function LimitsDialog({ limits, onClose, changed }: { limits: Limits; onClose: () => void; changed: () => void }) {
  const [before] = useState(() => ({ machines: limits.machines === null ? "" : String(limits.machines), perDay: limits.per_day === null ? "" : String(limits.per_day / 1e6) }));
  const [now, setNow] = useState(before);
  const { body, wrong, command } = limitChange(before, now);
  const act = async () => {
    await patch("v1/limits", body);
    announce("The limits are changed");
    changed();
  };
  return (
    <FormDialog title="Change the limits" act="Change" fields={["machines", "per_day_usd"]} command={command} ready={!wrong.length && Object.keys(body).length > 0} onAct={act} onClose={onClose}>
      {(told) => (
        <>
          <p>They hold for all projects, from the next decision on. When the limit of a day is reached, jobs save and pause until the day ends. An empty field is no limit.</p>
          <TextField first numeric label="Most machines at once" value={now.machines} placeholder="no limit" hint={`${count(limits.machines_rented)} are rented now`}
            wrong={wrong.includes("machines") ? "a whole number, 0 or more" : told("machines")} set={(machines) => setNow({ ...now, machines })} />
          <TextField numeric label="Most in a day of UTC, in dollars" value={now.perDay} placeholder="no limit" hint={`${money(limits.spent_today)} are spent today`}
            wrong={wrong.includes("perDay") ? "an amount above 0: 200 or 12.50" : told("per_day_usd")} set={(perDay) => setNow({ ...now, perDay })} />
        </>
      )}
    </FormDialog>
  );
}
