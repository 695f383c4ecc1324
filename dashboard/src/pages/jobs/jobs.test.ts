import { describe, expect, it } from "vitest";

import type { JobLine } from "../../api/jobs";
import { inTime, remaining, speed, steps } from "./facts";
import { asked, filtersOf, fits, inAddress } from "./filters";
import { commonName, countsInWords, entriesOf } from "./folding";
import { NONE, rowsOf, withChanges, withPage, without } from "./rows";

const NOW = Date.parse("2026-11-21T12:00:00Z");

function job(number: number, changes: Partial<JobLine> = {}): JobLine {
  return {
    id: `job_${String(number).padStart(4, "0")}`, name: `job ${number}`, app_id: "app_1", app_name: "lora", sweep_id: null,
    status: "running", reason: null, message: null, where: null, step: 1, total_steps: 10, moves: 0, faults: 0, cost: 5, saved: null,
    soft_deadline: "2026-11-21T18:00:00Z", submitted_at: new Date(NOW - 1e6 + number * 1000).toISOString(), started_at: null,
    ended_at: null, estimated_finish_at: null, step_ms: null, losses: [], labels: {}, ...changes,
  };
}

const ids = (rows: { list: readonly JobLine[] }) => rows.list.map((one) => Number(one.id.slice(4)));
const all = { fits: () => true, complete: false, now: NOW };

describe("rows", () => {
  const first = rowsOf([job(9), job(8), job(6)]);
  it("takes pages on, each job once, newest first", () => {
    const rows = withPage(first, [job(6, { step: 5 }), job(7), job(3)]);
    expect(ids(rows)).toEqual([9, 8, 7, 6, 3]);
    expect(rows.list[rows.index.get("job_0006")!]!.step).toBe(5);
  });
  it("begins with nothing", () => expect(ids(withPage(NONE, [job(1), job(2)]))).toEqual([2, 1]));
  it("replaces what changed in its place, and lets new ones in", () => {
    const rows = withChanges(first, [job(8, { status: "failed" }), job(10), job(7)], all);
    expect(ids(rows)).toEqual([10, 9, 8, 7, 6]);
    expect(rows.list[2]!.status).toBe("failed");
  });
  it("passes over jobs of pages that are not read, unless there are no such pages", () => {
    expect(withChanges(first, [job(2)], all)).toBe(first);
    expect(ids(withChanges(first, [job(2)], { ...all, complete: true }))).toEqual([9, 8, 6, 2]);
  });
  it("passes over new ones of which only the service knows whether they fit", () => {
    expect(withChanges(first, [job(10)], { ...all, fits: () => null })).toBe(first);
  });
  it("keeps those that no longer fit for a moment", () => {
    const running = (one: JobLine) => one.status === "running";
    const rows = withChanges(first, [job(8, { status: "failed" })], { ...all, fits: running });
    expect(ids(rows)).toEqual([9, 8, 6]);
    expect(without(rows, NOW)).toBe(rows);
    expect(ids(without(rows, NOW + 1))).toEqual([9, 6]);
    expect(withChanges(rows, [job(8)], { ...all, fits: running }).left.size).toBe(0);
  });
  it("changes nothing where nothing changed", () => expect(withChanges(first, [], all)).toBe(first));
});

describe("filters", () => {
  const filters = filtersOf(new URLSearchParams("status=running,waiting&q=Ada&label=team:nlp&fold=0"));
  it("are read from the address and written back", () => {
    expect(filters).toMatchObject({ status: ["running", "waiting"], q: "Ada", labels: ["team:nlp"], folded: false, app_id: null });
    expect(inAddress(filters)).toMatchObject({ status: "running,waiting", q: "Ada", label: "team:nlp", fold: "0", app_id: null });
    expect(asked(filters)).toMatchObject({ status: "running,waiting", q: "Ada", label: ["team:nlp"] });
  });
  it("decide as the service does", () => {
    const labels = { team: "nlp", who: "ada" };
    expect(fits(job(1, { labels }), filters)).toBe(true);
    expect(fits(job(1, { labels, status: "failed" }), filters)).toBe(false);
    expect(fits(job(1, { labels: { team: "nlp" } }), filters)).toBe(false);
    expect(fits(job(1, { labels: { who: "ada" } }), filters)).toBe(false);
    expect(fits(job(1), filtersOf(new URLSearchParams("q=JOB_00")))).toBe(true);
    expect(fits(job(1), filtersOf(new URLSearchParams("key_id=key_1")))).toBeNull();
  });
});

describe("sweeps", () => {
  const list = [
    job(5, { sweep_id: "s", name: "rank-8", losses: [2, 1.5], cost: 2 }), job(4),
    job(3, { sweep_id: "s", name: "rank-16", status: "failed", losses: [3], cost: 3 }), job(2, { sweep_id: "alone" }),
  ];
  it("stand under one heading, where their newest job is", () => {
    const entries = entriesOf(list, { folded: true, open: new Set(), complete: true });
    expect(entries.map((one) => one.id)).toEqual(["s", "job_0004", "job_0002"]);
    expect(entries[0]).toMatchObject({ kind: "sweep", name: "rank", jobs: 2, over: 1, bestLoss: 1.5, cost: 5, step: 2, total_steps: 20, more: false });
  });
  it("open", () => {
    const entries = entriesOf(list, { folded: true, open: new Set(["s"]), complete: false });
    expect(entries.map((one) => one.id)).toEqual(["s", "job_0005", "job_0003", "job_0004", "job_0002"]);
  });
  it("are told apart from those of which more may come", () => {
    expect(entriesOf(list.slice(0, 3), { folded: true, open: new Set(), complete: false })[0]).toMatchObject({ more: true });
  });
  it("are single jobs where nothing is folded", () => {
    expect(entriesOf(list, { folded: false, open: new Set(), complete: true })).toHaveLength(4);
  });
  it("have the name that their jobs share", () => {
    expect(commonName(["lr=0.1", "lr=0.2"])).toBe("lr=0");
    expect(commonName(["a", "b"])).toBe("a");
    expect(commonName(["same", "same"])).toBe("same");
    expect(countsInWords({ failed: 1, running: 3 })).toBe("3 running, 1 failed");
  });
});

describe("facts", () => {
  it("say speed and steps", () => {
    expect([null, 40, 400, 1500, 25_000, 90_000].map(speed)).toEqual(["–", "25 steps/s", "2.5 steps/s", "1.5 s/step", "25 s/step", "1 min 30 s/step"]);
    expect([steps(1204, 3120), steps(7, null)]).toEqual(["1,204 / 3,120", "7"]);
  });
  it("say what is left", () => {
    expect(remaining(job(1, { estimated_finish_at: "2026-11-21T14:31:00Z" }), NOW)).toBe("2 h 31 min");
    expect(remaining(job(1, { status: "succeeded", estimated_finish_at: "2026-11-21T14:31:00Z" }), NOW)).toBe("–");
  });
  it("say whether it is in time", () => {
    expect(inTime(job(1), NOW)).toEqual({ kind: "ahead", text: "6 h left" });
    expect(inTime(job(1, { estimated_finish_at: "2026-11-21T19:00:00Z" }), NOW).kind).toBe("risk");
    expect(inTime(job(1, { soft_deadline: "2026-11-21T11:00:00Z" }), NOW)).toEqual({ kind: "late", text: "late 1 h" });
    expect(inTime(job(1, { status: "succeeded", ended_at: "2026-11-21T11:00:00Z" }), NOW)).toEqual({ kind: "good", text: "met" });
    expect(inTime(job(1, { status: "failed", ended_at: "2026-11-21T11:00:00Z" }), NOW).kind).toBe("none");
  });
});
