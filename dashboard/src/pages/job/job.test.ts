import { describe, expect, it } from "vitest";

import type { Job, JobEvent, JobSize, Stay, Timeline } from "../../api/jobs";
import { dollars, limitChange, quoted, seconds, spanText, unsavedSteps } from "./changes";
import { notes, partsOf, verdictOf } from "./cost-parts";
import { flat, parameterPairs } from "./flat";
import { safeLink } from "./links";
import { NO_LINES, severityOf, shownText, withText } from "./log-lines";
import { metricsOf, thinned } from "./metric-lines";
import { endInWords, markKind, pauseBefore, storyOf } from "./story";
import { endOf, hasChanged, stepsOf, stepWords } from "./size-steps";
import { layoutOf, ticksOf } from "./timeline-layout";

const T0 = Date.parse("2026-11-21T00:00:00Z");
const at = (s: number) => new Date(T0 + s * 1000).toISOString();

function stay(tier: Stay["tier"], from: number, running: number | null, to: number | null, end: string | null = null): Stay {
  return {
    run_id: "r", node_id: "n", provider: "p", tier, gpu_type: "A100", gpu_count: 1, price_per_hour: 1, resumed_from_step: null,
    from_at: at(from), running_at: running === null ? null : at(running), to_at: to === null ? null : at(to), end_reason: end, cost: 1,
  };
}
const event = (position: number, s: number, kind: string, message = kind): JobEvent => ({ position, at: at(s), kind, message, data: {} });
const job = (changes: Partial<Job> = {}) => ({ submitted_at: at(0), ended_at: null, status: "running", message: null, step: 0, ...changes }) as Job;

const STAYS = [stay("serverless", 10, 20, 100, "migrated"), stay("marketplace", 90, 104, 200, "node_lost"), stay("marketplace", 260, 280, null)];
const EVENTS = [event(1, 0, "queued", "submitted"), event(2, 200, "node_lost"), event(3, 201, "waiting", "waits for a node"), event(4, 230, "checkpoint_committed")];

describe("a story", () => {
  const story = storyOf(job(), STAYS, EVENTS, T0 + 400_000);
  it("tells stays and what is between them", () => {
    expect(story.stretches.map((one) => [one.kind, (one.from - T0) / 1000, (one.to - T0) / 1000])).toEqual([
      ["wait", 0, 10], ["boot", 10, 20], ["run", 20, 100], ["boot", 90, 104], ["run", 104, 200], ["wait", 200, 260], ["boot", 260, 280], ["run", 280, 400],
    ]);
  });
  it("tells why it waited", () => expect(story.stretches[5]).toMatchObject({ why: "waits for a node", open: false }));
  it("has marks for what happened", () => expect(story.marks.map((mark) => mark.kind)).toEqual(["fault", "checkpoint"]));
  it("says what it waits for now", () => {
    const now = storyOf(job({ status: "paused", message: "its limit is reached" }), STAYS.slice(0, 2), EVENTS, T0 + 400_000).stretches.at(-1)!;
    expect(now).toMatchObject({ kind: "paused", open: true, why: "its limit is reached" });
  });
  it("is there before anything ran", () => expect(storyOf(job({ status: "queued" }), [], [], T0 + 5000).stretches).toHaveLength(1));
  it("knows how long moves stopped it, and ends in words", () => {
    expect([pauseBefore(STAYS, 0), pauseBefore(STAYS, 1), pauseBefore(STAYS, 2)]).toEqual([null, 4000, 80_000]);
    expect(STAYS.map(endInWords)).toEqual(["moved on", "machine lost", "runs"]);
    expect([markKind("move_begun"), markKind("resumed"), markKind("run_running"), markKind("checkpoint_damaged")]).toEqual(["move", "restart", null, "fault"]);
  });
});

describe("its layout", () => {
  const story = storyOf(job(), STAYS, EVENTS, T0 + 400_000);
  it("has a lane for each place that was used", () => {
    const layout = layoutOf(story, { over: false, finish: T0 + 500_000, deadline: T0 + 9e6 });
    expect(layout.lanes.map((lane) => [lane.name, lane.bars.length])).toEqual([["waiting", 2], ["serverless", 2], ["marketplace", 4]]);
    expect(layout.finish!.left).toBeGreaterThan(layout.now!);
    expect(layout.finish!.left).toBeLessThanOrEqual(100);
    expect(layout.deadline).toBeNull();
    expect(layout.beyond).toEqual(["deadline 2 h 23 min from now"]);
  });
  it("has a lane for a team's own machines, above all that is rented", () => {
    const story = storyOf(job(), [stay("serverless", 10, 20, 100, "migrated"), stay("own", 90, 104, null)], EVENTS, T0 + 400_000);
    const layout = layoutOf(story, { over: false, finish: null, deadline: T0 + 9e6 });
    expect(layout.lanes.map((lane) => [lane.name, lane.bars.length])).toEqual([["waiting", 1], ["own", 2], ["serverless", 2]]);
  });
  it("is as long as the job where that is over", () => {
    const layout = layoutOf(storyOf(job({ ended_at: at(400), status: "succeeded" }), STAYS, [], 0), { over: true, finish: null, deadline: T0 + 200_000 });
    expect(layout).toMatchObject({ now: null, finish: null, deadline: { left: 50 }, beyond: [] });
  });
  it("does not draw a smear of marks", () => {
    const many = Array.from({ length: 5000 }, (_, n) => event(n, n / 20, "checkpoint_committed"));
    expect(layoutOf(storyOf(job(), STAYS, many, T0 + 400_000), { over: false, finish: null, deadline: 0 }).marks.length).toBeLessThan(90);
  });
  it("has few ticks at round times", () => {
    expect(ticksOf(400_000).map((tick) => tick.text)).toEqual(["submitted", "+1 min", "+2 min", "+3 min", "+4 min", "+5 min", "+6 min"]);
    for (const span of [50, 4e6, 9e8, 9e11]) expect(ticksOf(span).length).toBeLessThan(9);
  });
});

describe("cost", () => {
  const timeline = (cost: number, all: number): Timeline => ({ stays: STAYS, waiting_ms: 0, running_ms: 1, cost, all_serverless: all, repeated_ms: 60_000 });
  it("is told by part", () => {
    const lines = [{ key: "j", payer: "run" as const, cost: 80 }, { key: "j", payer: "boot" as const, cost: 20 }, { key: "x", payer: "boot" as const, cost: 9 }];
    expect(partsOf("j", 100, 30, lines).map((part) => [part.kind, part.cost])).toEqual([["run", 80], ["boot", 20], ["idle", 30]]);
    expect(partsOf("j", 100, null, []).map((part) => [part.name, part.cost])).toEqual([["Run and boot", 100]]);
  });
  it("is compared honestly", () => {
    expect(verdictOf(timeline(1e6, 4e6), null, true)).toEqual({ kind: "good", text: "$3.00 (75 %) less than all on serverless." });
    expect(verdictOf(timeline(4e6, 3e6), null, false)).toEqual({ kind: "bad", text: "It cost $1.00 (33 %) more than all on serverless would have so far." });
    expect(verdictOf(timeline(1e6, 4e6), 5e6, true).kind).toBe("faint");
    expect(verdictOf({ ...timeline(0, 0), stays: [] }, null, false).kind).toBe("faint");
    expect(notes(timeline(1, 1))).toHaveLength(2);
  });
});

describe("changes", () => {
  it("read times and money", () => {
    expect([seconds("8h"), seconds("1d 12h"), seconds("90"), seconds("x"), seconds("0s")]).toEqual([28_800, 129_600, null, null, null]);
    expect([spanText(30_600), spanText(null), seconds(spanText(90_061))]).toEqual(["8h30m", "", 90_061]);
    expect([dollars("$20"), dollars("0"), dollars("1e3"), dollars("0.25")]).toEqual([20, null, null, 0.25]);
  });
  it("send only what differs", () => {
    const before = { max_cost: "20", max_hourly: "", max_duration: "8h", max_wait: "" };
    const change = limitChange("job_1", before, { max_cost: "25", max_hourly: "x", max_duration: "", max_wait: "" });
    expect(change).toEqual({ body: { max_cost_usd: 25, max_duration_s: null }, wrong: ["max_hourly"], command: "allpass set job_1 --max-cost 25 --max-duration none" });
  });
  it("say what is lost", () => {
    expect(unsavedSteps(job({ step: 237, checkpoint_step: 200 }))).toBe(37);
    expect(unsavedSteps(job({ step: 37, checkpoint_step: null }))).toBe(37);
  });
  it("quote for a shell", () => expect([quoted("a/b.pt"), quoted("a b; rm"), quoted("it's")]).toEqual(["a/b.pt", "'a b; rm'", `'it'"'"'s'`]));
});

describe("log lines", () => {
  it("come whole, whatever the pieces are", () => {
    const one = withText(NO_LINES, "a\nb");
    expect(one).toMatchObject({ rest: "b", next: 2 });
    const two = withText(one, "c\n\nd");
    expect(two.lines.map((line) => [line.number, line.text])).toEqual([[1, "a"], [2, "bc"], [3, ""]]);
    expect(withText(two, "", { last: true }).lines.at(-1)).toMatchObject({ number: 4, text: "d" });
  });
  it("are bounded", () => {
    const state = withText(NO_LINES, "x\n".repeat(120), { most: 100 });
    expect(state.lines).toHaveLength(80);
    expect([state.lines[0]!.number, state.dropped]).toEqual([41, 40]);
  });
  it("are shown as a terminal would", () => {
    expect(shownText("\u001b[31mred\u001b[0m")).toBe("red");
    expect(shownText(" 10%\r 50%\r100%\r")).toBe("100%");
    expect(shownText("x".repeat(9000)).length).toBeLessThan(4100);
  });
  it("are grave or not", () => {
    expect(["ERROR: no", "Traceback (most recent call last):", "ValueError: x", "UserWarning: y", "step 1 error_rate 0.1", "---- run 2 on A100, begins at step 0 ----"].map((text) => severityOf(text)))
      .toEqual(["bad", "bad", "bad", "wait", "", "head"]);
    expect(withText(NO_LINES, "Traceback (most recent call last):\n  File x\nnext\n").lines.map((line) => line.severity)).toEqual(["bad", "bad", ""]);
  });
});

describe("metrics", () => {
  it("are lines by name, losses first, each step once", () => {
    const point = (step: number, values: Record<string, number>) => ({ step, at: at(step), values });
    const found = metricsOf([point(1, { lr: 1, loss: 3 }), point(3, { loss: 2 }), point(2, { loss: 2.5 }), point(3, { loss: 1 })]);
    expect(found.map((metric) => metric.name)).toEqual(["loss", "lr"]);
    expect(found[0]!.points).toEqual([[1, 3], [2, 2.5], [3, 1]]);
  });
  it("are thinned with both ends", () => {
    const values = thinned(Array.from({ length: 1000 }, (_, n) => [n, n] as const), 10);
    expect([values.length, values[0], values.at(-1)]).toEqual([10, 0, 999]);
  });
});

describe("parameters", () => {
  it("are flat", () => {
    expect(flat({ a: { b: 1, none: null, empty: {} }, list: [1, "x"] })).toEqual([{ name: "a.b", value: "1" }, { name: "list", value: "1  x" }]);
    expect(parameterPairs(["--lr", "1"])).toEqual([{ name: "1", value: "--lr" }, { name: "2", value: "1" }]);
  });
});

it("follows links to the web only", () => {
  expect(["https://a.b/c", "/v1/x", "javascript:alert(1)", "data:text/html,x", " javascript:alert(1)", null].map(safeLink)).toEqual(["https://a.b/c", "/v1/x", null, null, null, null]);
});

describe("its sizes", () => {
  const size = (from: number, to: number | null, gpus: number, before: number | null): JobSize => ({
    run_id: "r", node_id: "n", gpu_type: "A100", gpus, gpus_before: before, price_per_hour: 1,
    from_at: at(from), to_at: to === null ? null : at(to), why: before === null ? "begun" : "lent", text: "", for_job_id: null,
  });
  it("are told where they changed in a run", () => {
    expect(hasChanged([size(0, 50, 4, null), size(60, null, 2, null)])).toBe(false);
    expect(hasChanged([size(0, 50, 4, null), size(50, null, 3, 4)])).toBe(true);
  });
  it("stand on one axis, as high as the most of them", () => {
    const steps = stepsOf([size(0, 50, 4, null), size(50, 75, 1, 4), size(75, null, 2, 1)], T0 + 100_000);
    expect(steps.map((one) => [one.left, one.width, one.height])).toEqual([[0, 50, 100], [50, 25, 25], [75, 25, 50]]);
  });
  it("tell what a step was measured to take", () => {
    expect(stepWords({ step_s: 0.2134, noise: 0.021 })).toBe("0.21 s ±2 %");
    expect(stepWords({ step_s: 312.4, noise: null })).toBe("312 s");
    expect([{}, { step_s: null }, { step_s: 0 }, { step_s: NaN }].map(stepWords)).toEqual(["–", "–", "–", "–"]);
  });
  it("never end before they begin, and none are no picture", () => {
    expect(endOf(size(10, null, 1, null), T0)).toBe(T0 + 10_000);
    expect(stepsOf([size(10, null, 1, null)], T0)[0]!.width).toBe(0);
    expect(stepsOf([], T0)).toEqual([]);
  });
});
