import { describe, expect, it, vi } from "vitest";

vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener: () => undefined }));
const { systemCharts } = await import("./system-lines");

const at = (s: number) => new Date(s * 1000).toISOString();

describe("the machine under a job", () => {
  it("has a chart for each unit, and a line for each GPU", () => {
    const charts = systemCharts([
      { at: at(10), values: { "system/gpu10/util_percent": 1, "system/gpu2/util_percent": 2, "system/memory_bytes": 3 } },
      { at: at(20), values: { "system/gpu2/util_percent": 4, "system/cpu_percent": 5 } },
    ]);
    expect(charts.map((one) => [one.title, one.lines.map((line) => line.label)])).toEqual([["GPU use", ["gpu2", "gpu10"]], ["Processor", ["processor"]], ["Memory", ["memory"]]]);
    expect(charts[0]!.lines[0]!.points).toEqual([[10, 2], [20, 4]]);
  });
  it("leaves out what nobody knows", () => {
    expect(systemCharts([{ at: at(1), values: { loss: 1, "system/gpu0/<b>": 2 } }])).toEqual([]);
    expect(systemCharts([])).toEqual([]);
  });
});
