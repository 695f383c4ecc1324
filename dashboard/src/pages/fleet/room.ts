/** What would fit on hosts of own pools now, in the words of `allpass fragmentation`. */

import { count, plural } from "../../format";
import type { Fragmentation } from "./shapes";

export interface RoomLine {
  name: string;
  fitting: number;
  gpus: number; // free ones that none could have: too few together on their hosts
  cpus: number; // too few processors are cut with them
  switches: number | null; // too few whole hosts are under their switch; null where that is no question
}

export function roomLines(found: Fragmentation): RoomLine[] {
  const alone = found.requests.map((one) => ({
    name: `${plural(one.gpus, "GPU")}, ${one.cpus} CPUs`, fitting: one.fitting, gpus: one.blocked_by_gpus, cpus: one.blocked_by_cpus, switches: null,
  }));
  const gangs = found.gangs.map((one) => ({
    name: `${one.gpus} GPUs in one switch, of ${one.host_gpus} with ${one.host_cpus} CPUs`,
    fitting: one.fitting, gpus: one.blocked_by_gpus, cpus: one.blocked_by_cpus, switches: one.blocked_by_switch,
  }));
  return [...alone, ...gangs];
}

export function roomSummary(found: Fragmentation): string {
  return `${count(found.free_gpus)} of ${plural(found.gpus, "GPU")} are free, and ${count(found.whole_hosts)} of ${plural(found.hosts, "host")} ${found.whole_hosts === 1 ? "is" : "are"} whole, under ${plural(found.switches, "switch", "switches")}`;
}

export function roomCommand(pool: string): string {
  return pool ? `allpass fragmentation --pool ${pool}` : "allpass fragmentation";
}

/** Moves can help where GPUs are free and no host is whole. */
export function movesHelp(found: Fragmentation): boolean {
  return found.free_gpus > 0 && found.whole_hosts === 0;
}
