import { count, hourly, plural } from "../../format";
import { figures } from "../../parts/chart-data";
import { href } from "../../route";
import type { Decision } from "./decisions";
import { differences, droppedOf, type PlannedAction, type Replay } from "./replays";

/** What comes out the same, what only then and what only now; of the own project in full, of others as numbers. */
export function ReplayResult({ decision, replay }: { decision: Decision; replay: Replay }) {
  const dropped = droppedOf(decision, replay);
  return (
    <div class="replay-result" role="status">
      <p class="headline">{verdict(replay)}</p>
      {replay.caveat && <p class="wait">Not exact: {replay.caveat}</p>}
      <Signals replay={replay} />
      <Actions title="Only then" mark="−" kind="bad" list={replay.only_then} hidden={replay.others.only_then} />
      <Actions title={`Only now, by ${replay.policy_now}`} mark="+" kind="good" list={replay.only_now} hidden={replay.others.only_now} />
      <Actions title="In both" mark="=" kind="faint" list={replay.both} hidden={replay.others.both} />
      {dropped > 0 && <p><b>Dropped:</b> {plural(dropped, "action was", "actions were")} planned then and not tried, since a limit left no room or what they are about had changed meanwhile.</p>}
      <Waits replay={replay} />
    </div>
  );
}

function verdict(replay: Replay): string {
  const who = replay.policy_then === replay.policy_now ? replay.policy_now : `${replay.policy_now} in place of ${replay.policy_then}`;
  if (replay.same) return `${who}: it comes out the same.`;
  const then = replay.only_then.length + replay.others.only_then;
  const now = replay.only_now.length + replay.others.only_now;
  return `${who}: ${plural(then, "action")} fewer, ${plural(now, "action")} more, ${count(replay.both.length + replay.others.both)} the same.`;
}

function Signals({ replay }: { replay: Replay }) {
  const list = differences(replay);
  if (!list.length) return null;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Compared">
      <table class="signals">
        <thead><tr><th>Measured</th><th class="number">Then</th><th class="number">Now</th></tr></thead>
        <tbody>{list.map((one) => <tr key={one.name}><th scope="row">{one.name}</th><td class="number">{figures(one.then)}</td><td class="number">{figures(one.now)}</td></tr>)}</tbody>
      </table>
    </div>
  );
}

interface ActionsProps {
  title: string;
  mark: string;
  kind: string;
  list: readonly PlannedAction[];
  hidden: number;
}

function Actions({ title, mark, kind, list, hidden }: ActionsProps) {
  if (!list.length && !hidden) return null;
  return (
    <>
      <h3>{title}</h3>
      <ul class="planned">
        {list.map((one, at) => <li key={at}><Action action={one} mark={mark} kind={kind} /></li>)}
        {hidden > 0 && <li class="faint">{mark} {plural(hidden, "action")} on jobs and machines of other projects</li>}
      </ul>
    </>
  );
}

function Action({ action, mark, kind }: { action: PlannedAction; mark: string; kind: string }) {
  return (
    <>
      <b class={kind}><span aria-hidden="true">{mark}</span> {action.kind}</b>{" "}
      {action.job_id ? <a class="mono" href={href("jobs", action.job_id)}>{action.job_id}</a> : <span class="mono">{action.node_id}</span>}{" "}
      {action.offer && <span>{action.offer} {action.price_per_hour !== null && <span class="faint">{hourly(action.price_per_hour)}</span>}</span>}
      <span class="planned-why">{action.reason}</span>
    </>
  );
}

function Waits({ replay }: { replay: Replay }) {
  const { waits, unchanged_waits, others } = replay;
  return (
    <>
      {waits.length > 0 && <h3>Jobs that wait for another reason</h3>}
      <ul class="planned">
        {waits.map((one) => (
          <li key={one.job_id}>
            <a class="mono" href={href("jobs", one.job_id)}>{one.job_id}</a>
            <span class="planned-why"><span class="faint">then</span> {one.then ?? "it did not wait"}</span>
            <span class="planned-why"><span class="faint">now</span> {one.now ?? "it would not wait"}</span>
          </li>
        ))}
      </ul>
      <p class="faint small-text">{plural(unchanged_waits, "job waits", "jobs wait")} as before{others.waits > 0 && `; ${plural(others.waits, "job")} of other projects for another reason`}.</p>
    </>
  );
}
