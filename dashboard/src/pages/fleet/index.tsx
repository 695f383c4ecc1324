/** What is rented, from whom and at which price; what stands idle; what could be rented now. */

import { all } from "../../api/client";
import type { Node } from "../../api/fleet";
import { count, hourly } from "../../format";
import { Command } from "../../parts/command";
import { FiguresRow } from "../../parts/figures-row";
import { Part } from "../../parts/part";
import { useReading } from "../../parts/reading";
import { route, setQuery } from "../../route";
import { Machines } from "./machines";
import { Offers } from "./offers";
import { Providers } from "./providers";
import { sumOf } from "./sums";

const ANEW_MS = 5_000;
const MOST = 5_000;

export function Fleet() {
  const gone = route.value.query.get("gone") === "yes";
  const nodes = useReading(`nodes ${gone}`, (signal) => all<Node>("v1/nodes", { signal, query: { all: gone || null, limit: 1000 } }, MOST), ANEW_MS);
  return (
    <div class="fleet">
      <h1>Fleet</h1>
      {nodes.value && <Sums nodes={nodes.value} />}
      <Part title="Machines" reading={nodes}>
        {(list) => (
          <>
            <p class="choices">
              <label><input type="checkbox" checked={gone} onChange={(event) => setQuery({ gone: event.currentTarget.checked ? "yes" : null })} /> Those that are gone, too</label>
              <Command text={gone ? "allpass nodes --all" : "allpass nodes"} />
            </p>
            <Machines nodes={list} />
          </>
        )}
      </Part>
      <Offers />
      <Providers />
    </div>
  );
}

function Sums({ nodes }: { nodes: readonly Node[] }) {
  const sum = sumOf(nodes);
  return (
    <FiguresRow figures={[
      ["Machines", count(sum.machines)], ["GPUs", count(sum.gpus)], ["busy", count(sum.busy)],
      ["now", hourly(sum.hourly)], ["of it idle", hourly(sum.idleHourly), sum.idleHourly ? "wait" : undefined],
    ]} />
  );
}
