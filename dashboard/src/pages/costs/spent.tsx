import { get } from "../../api/client";
import type { Usage } from "../../api/costs";
import { count, money } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Choice } from "../../parts/figures-row";
import { Part } from "../../parts/part";
import { useReading } from "../../parts/reading";
import { href, route, setQuery } from "../../route";
import { groupsOf, type Group } from "./groups";

const ANEW_MS = 15_000;
const SHOWN = 200;
const BY = [["app", "app"], ["job", "job"], ["day", "day"], ["tier", "tier"], ["provider", "provider"]] as const;
const SINCE = [["1", "the last day"], ["7", "the last week"], ["30", "the last 30 days"], ["", "the beginning"]] as const;

/** By what one chooses; `label` in the address groups by the values of that label. */
export function Spent() {
  const query = route.value.query;
  const label = query.get("label") ?? "";
  const by = label ? `label:${label}` : (query.get("by") ?? "app");
  const since = query.get("since") ?? "30";
  const days = Number(since);
  const from = days > 0 ? new Date(Math.floor(Date.now() / 3_600_000) * 3_600_000 - days * 86_400_000).toISOString() : null;
  const reading = useReading(`usage ${by} ${from}`, (signal) => get<Usage>("v1/usage", { signal, query: { group_by: by, from } }), ANEW_MS);
  return (
    <>
      <div class="choices">
        <Choice label="Spent by" value={label ? "" : by} options={label ? [["", `label ${label}`], ...BY] : BY} onChoose={(value) => setQuery({ by: value, label: null })} />
        <label>or label <input class="label-field" value={label} placeholder="team" onChange={(event) => setQuery({ label: event.currentTarget.value.trim() || null })} /></label>
        <Choice label="since" value={SINCE.some(([value]) => value === since) ? since : "30"} options={SINCE} onChoose={(value) => setQuery({ since: value || "0" })} />
        <Command text={`allpass cost --by ${by}`} />
      </div>
      <Part title={`Spent by ${by.replace(":", " ")}`} reading={reading}>
        {(usage) => (usage.lines.length ? <Table usage={usage} by={by} /> : <Empty title="Nothing was spent in this time." />)}
      </Part>
    </>
  );
}

function Table({ usage, by }: { usage: Usage; by: string }) {
  const groups = groupsOf(usage.lines);
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="What was spent">
      <table>
        <thead><tr><th>{by.replace(":", " ")}</th><th>Share</th><th class="number">run</th><th class="number">boot</th><th class="number">idle</th><th class="number">GPU hours</th><th class="number">Cost</th></tr></thead>
        <tbody>
          {groups.slice(0, SHOWN).map((group) => <Row key={group.key ?? ""} group={group} by={by} whole={usage.cost} />)}
          {usage.rest.lines > 0 && <tr><td colSpan={5}>{count(usage.rest.lines)} smaller lines</td><td class="number">{hours(usage.rest.gpu_ms)}</td><td class="number">{money(usage.rest.cost)}</td></tr>}
        </tbody>
        <tfoot><tr><th colSpan={5}>All{usage.so_far ? ` so far: ${count(usage.open_nodes)} machines go on` : ""}</th><td class="number">{hours(usage.gpu_ms)}</td><td class="number"><b>{money(usage.cost)}</b></td></tr></tfoot>
      </table>
    </div>
  );
}

function Row({ group, by, whole }: { group: Group; by: string; whole: number }) {
  const share = whole > 0 ? group.cost / whole : 0;
  return (
    <tr>
      <td>{by === "job" && group.key ? <a href={href("jobs", group.key)}>{group.name}</a> : by === "app" && group.key ? <a href={href("jobs", null, null, { app_id: group.key })}>{group.name}</a> : group.name}</td>
      <td><div class="bar-share" title={`${Math.round(share * 100)} %`}><i style={{ width: `${share * 100}%` }} /></div></td>
      {["run", "boot", "idle"].map((payer) => <td key={payer} class="number">{group.byPayer[payer] ? money(group.byPayer[payer]) : "–"}</td>)}
      <td class="number">{hours(group.gpuMs)}</td><td class="number">{money(group.cost)}</td>
    </tr>
  );
}

function hours(ms: number): string {
  return (ms / 3_600_000).toFixed(2);
}
