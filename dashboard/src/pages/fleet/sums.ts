/** What the machines come to, in all and by tier and provider. Pure. */

import type { Node } from "../../api/fleet";

export interface Sum {
  machines: number;
  gpus: number;
  busy: number; // GPUs of machines on which a job is
  hourly: number; // micro-dollars
  idleHourly: number; // of machines that are ready and hold no job
}

export interface Group extends Sum {
  tier: string;
  provider: string;
}

const NONE: Sum = { machines: 0, gpus: 0, busy: 0, hourly: 0, idleHourly: 0 };

/** Machines that are gone cost nothing any more, and are left out. */
export function sumOf(nodes: readonly Node[]): Sum {
  return nodes.filter((node) => !node.ended_at).reduce(add, NONE);
}

/** One group for each tier and provider, by tier, then provider. */
export function groupsOf(nodes: readonly Node[]): Group[] {
  const found = new Map<string, Group>();
  for (const node of nodes) {
    if (node.ended_at) continue;
    const key = `${node.tier} ${node.provider}`;
    const before = found.get(key) ?? { tier: node.tier, provider: node.provider, ...NONE };
    found.set(key, { tier: node.tier, provider: node.provider, ...add(before, node) });
  }
  return [...found.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, group]) => group);
}

function add(sum: Sum, node: Node): Sum {
  const held = node.job_ids.length > 0;
  return {
    machines: sum.machines + 1,
    gpus: sum.gpus + node.gpu_count,
    busy: sum.busy + (held ? node.gpu_count : 0),
    hourly: sum.hourly + node.price_per_hour,
    idleHourly: sum.idleHourly + (!held && node.state === "ready" ? node.price_per_hour : 0),
  };
}
