/** What would fit on hosts of own pools now, and what of their GPUs is blocked, by why. */

import { all, get } from "../../api/client";
import { count } from "../../format";
import { href, route } from "../../route";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { movesHelp, roomCommand, roomLines, roomSummary } from "./room";
import type { Fragmentation } from "./shapes";

const ANEW_MS = 20_000;
const MOST_POOLS = 200;

interface Room {
  pools: string[];
  found: Fragmentation;
}

export function RoomTab() {
  const pool = route.value.query.get("pool") ?? "";
  const { value, error, again } = useReading(`room ${pool}`, (signal) => readRoom(pool, signal), ANEW_MS);
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading the pools" />;
  const { pools, found } = value;
  return (
    <>
      {error && <p class="wait" role="status">Not up to date: {error.message}</p>}
      {pools.length > 1 && <Pools pools={pools} chosen={pool} />}
      {found.hosts ? <Found found={found} pool={pool} /> : <None />}
    </>
  );
}

async function readRoom(pool: string, signal: AbortSignal): Promise<Room> {
  const [pools, found] = await Promise.all([
    all<{ name: string }>("v1/pools", { query: { limit: MOST_POOLS }, signal }, MOST_POOLS),
    get<Fragmentation>("v1/fragmentation", { query: { pool: pool || null }, signal }),
  ]);
  return { pools: pools.map((one) => one.name), found };
}

function Pools({ pools, chosen }: { pools: readonly string[]; chosen: string }) {
  return (
    <nav class="room-pools" aria-label="Pools">
      {["", ...pools].map((name) => (
        <a key={name} href={href("fleet", "room", null, { pool: name })} aria-current={name === chosen ? "true" : undefined}>{name || "All pools"}</a>
      ))}
    </nav>
  );
}

function Found({ found, pool }: { found: Fragmentation; pool: string }) {
  return (
    <>
      <p>{roomSummary(found)}.</p>
      <div class="scroll" tabIndex={0} role="group" aria-label="What would fit">
        <table class="tabled room">
          <thead>
            <tr>
              <th scope="col">Request</th><th scope="col" class="number">Fit now</th><th scope="col" class="number">Lack GPUs</th>
              <th scope="col" class="number">Lack CPUs</th><th scope="col" class="number">Lack a switch</th>
            </tr>
          </thead>
          <tbody>
            {roomLines(found).map((one) => (
              <tr key={one.name}>
                <th scope="row">{one.name}</th>
                <td class="number"><b>{count(one.fitting)}</b></td>
                <td class="number">{count(one.gpus)}</td>
                <td class="number">{count(one.cpus)}</td>
                <td class="number">{one.switches === null ? "–" : count(one.switches)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="faint small-text">Requests beside each other on hosts that take jobs now. What lacks something is free GPUs that no request of the kind could have.</p>
      <p><Command text={roomCommand(pool)} /></p>
      {movesHelp(found) && <p>No host is whole: <Command text={`allpass defrag --dry-run${pool ? ` --pool ${pool}` : ""}`} /> shows which could be.</p>}
    </>
  );
}

function None() {
  return (
    <Empty title="No host of a pool takes jobs now">
      <p>Machines of your own join a pool: <Command text="allpass pool create lab" /></p>
    </Empty>
  );
}
