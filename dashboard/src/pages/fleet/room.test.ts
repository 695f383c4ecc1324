import { describe, expect, it } from "vitest";

import { movesHelp, roomCommand, roomLines, roomSummary } from "./room";
import type { Fragmentation } from "./shapes";

const FOUND: Fragmentation = {
  pool: null, hosts: 17, whole_hosts: 0, gpus: 1_136, free_gpus: 9, switches: 1,
  requests: [
    { gpus: 1, cpus: 8, fitting: 9, blocked_by_gpus: 0, blocked_by_cpus: 0 },
    { gpus: 8, cpus: 64, fitting: 0, blocked_by_gpus: 9, blocked_by_cpus: 2 },
  ],
  gangs: [{ gpus: 128, host_gpus: 8, host_cpus: 64, fitting: 0, blocked_by_gpus: 9, blocked_by_cpus: 0, blocked_by_switch: 8 }],
};

describe("what would fit", () => {
  it("is told as the command line tells it", () => {
    expect(roomLines(FOUND).map((one) => [one.name, one.fitting, one.gpus, one.cpus, one.switches])).toEqual([
      ["1 GPU, 8 CPUs", 9, 0, 0, null],
      ["8 GPUs, 64 CPUs", 0, 9, 2, null],
      ["128 GPUs in one switch, of 8 with 64 CPUs", 0, 9, 0, 8],
    ]);
    expect(roomSummary(FOUND)).toBe("9 of 1,136 GPUs are free, and 0 of 17 hosts are whole, under 1 switch");
    expect([roomCommand(""), roomCommand("lab")]).toEqual(["allpass fragmentation", "allpass fragmentation --pool lab"]);
  });
  it("says that moves help only where something is free and nothing is whole", () => {
    expect([movesHelp(FOUND), movesHelp({ ...FOUND, whole_hosts: 1 }), movesHelp({ ...FOUND, free_gpus: 0 })]).toEqual([true, false, false]);
  });
});
