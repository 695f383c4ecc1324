import type { Node } from "../../api/fleet";
import { count, duration, hourly, money, plural } from "../../format";
import { Empty } from "../../parts/empty";
import { gpus, Tier } from "../../parts/place";
import { now, Time } from "../../parts/time";
import { href } from "../../route";
import { groupsOf } from "./sums";

const SHOWN = 500;

export function Machines({ nodes }: { nodes: readonly Node[] }) {
  if (!nodes.length) return <Empty title="Nothing is rented."><p>A machine is rented when a job needs one, and given back when none does.</p></Empty>;
  return (
    <>
      <Groups nodes={nodes} />
      <div class="scroll" tabIndex={0} role="group" aria-label="Machines, one by one">
        <table>
          <thead>
            <tr><th>Machine</th><th>State</th><th>Where</th><th class="number">GPUs</th><th class="number">Price</th><th>Jobs</th><th class="number">Age</th><th class="number">Cost</th><th>Said</th></tr>
          </thead>
          <tbody>{nodes.slice(0, SHOWN).map((node) => <Row key={node.id} node={node} />)}</tbody>
        </table>
      </div>
      {nodes.length > SHOWN && <p class="faint">The newest {count(SHOWN)} of {plural(nodes.length, "machine")}. All: <code>allpass nodes --all</code></p>}
    </>
  );
}

function Groups({ nodes }: { nodes: readonly Node[] }) {
  const groups = groupsOf(nodes);
  if (groups.length < 2) return null;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="By tier and provider">
      <table>
        <thead><tr><th>Tier</th><th>Provider</th><th class="number">Machines</th><th class="number">GPUs</th><th class="number">busy</th><th class="number">Price</th><th class="number">of it idle</th></tr></thead>
        <tbody>
          {groups.map((group) => (
            <tr key={`${group.tier} ${group.provider}`}>
              <td><Tier tier={group.tier} /></td><td>{group.provider}</td><td class="number">{count(group.machines)}</td><td class="number">{count(group.gpus)}</td>
              <td class="number">{count(group.busy)}</td><td class="number">{hourly(group.hourly)}</td><td class="number">{hourly(group.idleHourly)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ node }: { node: Node }) {
  const until = node.ended_at ? Date.parse(node.ended_at) : now.value;
  return (
    <tr>
      <td class="mono">{node.id}</td>
      <td class={STATES[node.state] ?? ""}>{node.state}</td>
      <td><Tier tier={node.tier} /> {node.provider} <span class="faint">{node.region}</span></td>
      <td class="number">{gpus(node.gpu_type, node.gpu_count)}</td>
      <td class="number">{hourly(node.price_per_hour)}</td>
      <td>{node.job_ids.length ? node.job_ids.map((id) => <a key={id} class="mono" href={href("jobs", id)}>{id} </a>) : <span class="faint">–</span>}</td>
      <td class="number" title={node.requested_at}>{duration(Math.max(0, until - Date.parse(node.requested_at)))}{node.ended_at && <span class="faint">, gone <Time at={node.ended_at} /></span>}</td>
      <td class="number">{money(node.cost)}</td>
      <td>{node.message ?? ""}</td>
    </tr>
  );
}

const STATES: Record<string, string> = { ready: "good", failed: "bad", unreachable: "bad", unknown: "wait", booting: "wait", requested: "wait", draining: "wait", terminating: "wait" };
