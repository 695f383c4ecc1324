/** Machines as one looks at them: filtered, in groups of tier and provider, with what is busy, free and idle. Pure. */

import { TIERS, type JobLine } from "../../api/jobs";
import type { Node } from "./shapes";

export interface NodeFilters {
  state: string | null; // null: all that are paid for; "ended"; or one state
  tier: string | null;
  provider: string | null;
  q: string;
  sort: Sort;
  folded: ReadonlySet<string>; // keys of groups
}

export const SORTS = ["newest", "dearest", "idle"] as const;
export type Sort = (typeof SORTS)[number];

/** GPUs of a machine. `most`: how many are held is not known, at most so many. */
export interface Gpus {
  busy: number;
  free: number; // a job could have them at once
  coming: number; // of a machine that starts
  most: boolean;
}

export interface Sums extends Gpus {
  nodes: number;
  gpus: number;
  perHour: number;
  idlePerHour: number;
}

export interface NodeRow {
  kind: "node";
  key: string;
  node: Node;
  gpus: Gpus;
  idlePerHour: number;
}

export interface GroupRow {
  kind: "group";
  key: string; // "marketplace/vast"
  tier: string;
  provider: string;
  folded: boolean;
  sums: Sums;
}

export type Row = NodeRow | GroupRow;

/** How many GPUs of each machine jobs hold, and what these jobs are called. */
export interface Held {
  gpus: ReadonlyMap<string, number>;
  names: ReadonlyMap<string, string>;
}

export const NOTHING_HELD: Held = { gpus: new Map(), names: new Map() };

const STARTING = new Set(["requested", "booting", "unknown"]);
const GONE = new Set(["terminated", "failed"]);
const BILLED_IDLE = new Set(["ready", "draining"]);

export function isGone(node: { state: string }): boolean {
  return GONE.has(node.state);
}

export function filtersOf(query: URLSearchParams): NodeFilters {
  const sort = SORTS.find((one) => one === query.get("sort")) ?? "newest";
  const folded = new Set((query.get("fold") ?? "").split(",").filter(Boolean));
  return { state: query.get("state"), tier: query.get("tier"), provider: query.get("provider"), q: query.get("q") ?? "", sort, folded };
}

export function heldBy(jobs: readonly Pick<JobLine, "id" | "name" | "where">[]): Held {
  const gpus = new Map<string, number>();
  const names = new Map<string, string>();
  for (const { id, name, where } of jobs) {
    names.set(id, name);
    if (where) gpus.set(where.node_id, (gpus.get(where.node_id) ?? 0) + where.gpu_count);
  }
  return { gpus, names };
}

/** Jobs that were merged hold the same GPUs together, so that their sum is bounded by what the machine has. */
export function gpusOf(node: Node, held: Held): Gpus {
  const { gpu_count: all, state } = node;
  if (isGone(node)) return { busy: 0, free: 0, coming: 0, most: false };
  if (STARTING.has(state)) return { busy: 0, free: 0, coming: all, most: false };
  const known = held.gpus.get(node.id);
  const most = node.job_ids.length > 0 && all > 1 && known === undefined;
  const busy = node.job_ids.length ? Math.min(all, known ?? all) : 0;
  return { busy, free: state === "ready" ? all - busy : 0, coming: 0, most };
}

/** Dollars an hour for GPUs that nobody holds. */
export function idlePerHour(node: Node, gpus: Gpus): number {
  if (!BILLED_IDLE.has(node.state) || node.gpu_count < 1) return 0;
  return Math.round((node.price_per_hour * (node.gpu_count - gpus.busy)) / node.gpu_count);
}

export function rowOf(node: Node, held: Held): NodeRow {
  const gpus = gpusOf(node, held);
  return { kind: "node", key: node.id, node, gpus, idlePerHour: idlePerHour(node, gpus) };
}

export function sumsOf(rows: readonly NodeRow[]): Sums {
  const sums: Sums = { nodes: 0, gpus: 0, busy: 0, free: 0, coming: 0, most: false, perHour: 0, idlePerHour: 0 };
  for (const { node, gpus, idlePerHour: idle } of rows) {
    sums.nodes += 1;
    sums.gpus += node.gpu_count;
    sums.busy += gpus.busy;
    sums.free += gpus.free;
    sums.coming += gpus.coming;
    sums.most ||= gpus.most;
    if (!isGone(node)) sums.perHour += node.price_per_hour;
    sums.idlePerHour += idle;
  }
  return sums;
}

export function fits({ node }: NodeRow, filters: NodeFilters, held: Held): boolean {
  if (filters.tier && node.tier !== filters.tier) return false;
  if (filters.provider && node.provider !== filters.provider) return false;
  if (filters.state && filters.state !== "ended" && node.state !== filters.state) return false;
  const q = filters.q.trim().toLowerCase();
  if (!q) return true;
  const texts = [node.id, node.provider, node.tier, node.gpu_type, node.region, node.message ?? "", ...node.job_ids, ...node.job_ids.map((id) => held.names.get(id) ?? "")];
  return texts.some((text) => text.toLowerCase().includes(q));
}

const ORDERS: Record<Sort, (a: NodeRow, b: NodeRow) => number> = {
  newest: (a, b) => b.node.requested_at.localeCompare(a.node.requested_at) || a.key.localeCompare(b.key),
  dearest: (a, b) => b.node.price_per_hour - a.node.price_per_hour || a.key.localeCompare(b.key),
  idle: (a, b) => b.idlePerHour - a.idlePerHour || a.key.localeCompare(b.key),
};

/** The groups in the order of the tiers, each followed by its machines unless it is folded. */
export function grouped(rows: readonly NodeRow[], { sort, folded }: Pick<NodeFilters, "sort" | "folded">): Row[] {
  const groups = new Map<string, NodeRow[]>();
  for (const row of rows) {
    const key = `${row.node.tier}/${row.node.provider}`;
    const group = groups.get(key);
    if (group) group.push(row);
    else groups.set(key, [row]);
  }
  return [...groups].sort(([, a], [, b]) => byPlace(a[0]!.node, b[0]!.node)).flatMap(([key, inside]) => {
    const { tier, provider } = inside[0]!.node;
    const head: GroupRow = { kind: "group", key, tier, provider, folded: folded.has(key), sums: sumsOf(inside) };
    return head.folded ? [head] : [head, ...inside.sort(ORDERS[sort])];
  });
}

function byPlace(a: Node, b: Node): number {
  return TIERS.indexOf(a.tier) - TIERS.indexOf(b.tier) || a.provider.localeCompare(b.provider);
}

/** How many machines are in each state, the most frequent states first. */
export function statesOf(nodes: readonly Node[]): [state: string, count: number][] {
  const counts = new Map<string, number>();
  for (const { state } of nodes) counts.set(state, (counts.get(state) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
}

/** The command that shows the same machines. */
export function commandOf(filters: Pick<NodeFilters, "state">): string {
  return filters.state === "ended" ? "allpass nodes --all" : "allpass nodes";
}
