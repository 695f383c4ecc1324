/** Reads machines and what runs on them. */

import { all, get } from "../../api/client";
import type { JobLine } from "../../api/jobs";
import type { Page } from "../../api/types";
import { heldBy, isGone, type Held } from "./nodes";
import type { Node } from "./shapes";

const PAGE = 1000;
const MOST_LIVE = 5_000;
const MOST_ENDED = 1_000;
const MOST_PAGES = 8; // looked through for machines that have ended: those that run are among them

export function readLive(signal: AbortSignal): Promise<Node[]> {
  return all<Node>("v1/nodes", { query: { limit: PAGE }, signal }, MOST_LIVE);
}

export interface Ended {
  nodes: Node[];
  complete: boolean; // else there are older ones
}

export async function readEnded(signal: AbortSignal): Promise<Ended> {
  const nodes: Node[] = [];
  let cursor: string | null = null;
  for (let at = 0; at < MOST_PAGES && nodes.length < MOST_ENDED; at += 1) {
    const page: Page<Node> = await get<Page<Node>>("v1/nodes", { query: { all: true, limit: PAGE, cursor }, signal });
    nodes.push(...page.data.filter(isGone));
    cursor = page.next_cursor;
    if (cursor === null) break;
  }
  return { nodes, complete: cursor === null };
}

/** A list of machines says which jobs are on them; only the jobs say how many GPUs each holds, and their names. */
export async function readHeld(signal: AbortSignal): Promise<Held> {
  const query = { status: "running,starting,checkpointing", limit: PAGE };
  return heldBy(await all<JobLine>("v1/jobs/table", { query, signal }, MOST_LIVE));
}
