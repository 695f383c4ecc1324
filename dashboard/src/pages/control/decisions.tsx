import { get } from "../../api/client";
import type { Decision } from "../../api/control";
import type { Page } from "../../api/types";
import { count } from "../../format";
import { Empty } from "../../parts/empty";
import { Part } from "../../parts/part";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { href } from "../../route";
import { inWords } from "./course";

const ANEW_MS = 5_000;
const SHOWN = 50;
const REASONS = 2;

/** The newest ones, each with what was chosen and why. Reasons are told of the own project's jobs and machines. */
export function Decisions() {
  const reading = useReading("ticks", (signal) => get<Page<Decision>>("v1/ticks", { signal, query: { limit: SHOWN } }), ANEW_MS);
  return (
    <Part title="Decisions" reading={reading}>
      {({ data }) => (data.length ? <Table decisions={data} /> : <Empty title="None is kept yet." />)}
    </Part>
  );
}

function Table({ decisions }: { decisions: readonly Decision[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Decisions, newest first">
      <table>
        <thead><tr><th class="number">Number</th><th>Taken</th><th>Since</th><th>Chosen</th><th>Why</th><th class="number">took</th></tr></thead>
        <tbody>
          {decisions.map((one) => (
            <tr key={one.id}>
              <td class="number"><a href={href("control", String(one.id))}>{one.id}</a></td><td><Time at={one.at} /></td><td>{one.trigger}</td>
              <td>{inWords(one.actions)}</td>
              <td>{one.reasons.slice(0, REASONS).map((reason) => <div key={reason}>{reason}</div>)}
                {one.reasons.length > REASONS && <span class="faint">and {one.reasons.length - REASONS} more</span>}</td>
              <td class="number">{count(one.duration_ms)} ms</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
