import { describe, expect, it } from "vitest";

import { bodyOf, commandOf, fieldAbout, isOfHub, modelOf, NO_WISHES, tokensOf, wrongOf, type DataReport } from "./recipe";
import { USUAL } from "./request";

const MODEL = "HuggingFaceTB/SmolLM2-135M";
const planned = { ...USUAL, model: MODEL };
const data: DataReport = { sha256: "ab", name: "rows.jsonl", size_bytes: 9, rows: 3, shape: "prompt", labels: 0, characters: 400, ignored: [], problems: [], problem_count: 0 };

describe("a fine-tuning", () => {
  it("is what was planned, without what is as usual", () => {
    expect(bodyOf(planned, "", NO_WISHES, data)).toEqual({
      data: { sha256: "ab", name: "rows.jsonl" }, model: MODEL, method: "lora", settings: { batch_size: 16, sequence_length: 2048 },
    });
  });
  it("has caps, a name, a deadline and settings of its own", () => {
    const wishes = { ...NO_WISHES, epochs: "2", held_out: "0.2", name: " sums ", deadline: "6h", max_cost: "$5", max_duration: "90m" };
    const body = bodyOf({ ...planned, method: "qlora", rank: "8", precision: "fp16", optimizer: "adamw_8bit", checkpointing: true }, "", wishes, data);
    expect(body).toMatchObject({
      method: "qlora", held_out: 0.2, name: "sums", soft_deadline: "6h", template: { caps: { max_cost_usd: 5, max_duration_s: 5400 } },
      settings: { epochs: 2, lora_rank: 8, precision: "fp16", optimizer: "adamw_8bit", checkpointing: true },
    });
  });
  it("sends the config of a model of one's own, under the name of the hub", () => {
    const wishes = { ...NO_WISHES, hub: "me/mine" };
    expect(bodyOf(planned, '{"hidden_size": 8}', wishes, data)).toMatchObject({ model: "me/mine", config: { hidden_size: 8 } });
    expect(modelOf(planned, "", wishes)).toBe(MODEL);
  });
  it("is of several machines where so many are planned", () => {
    expect(bodyOf({ ...planned, nodes: "2" }, "", { ...NO_WISHES, max_cost: "5" }, data)).toMatchObject({ template: { caps: { max_cost_usd: 5 }, nodes: 2 } });
    expect(commandOf({ ...planned, nodes: "2" }, "", NO_WISHES, "rows.jsonl")).toContain("--nodes 2");
    expect(bodyOf({ ...planned, nodes: "1" }, "", NO_WISHES, data)).not.toHaveProperty("template");
    expect(fieldAbout("template.nodes")).toBe("nodes");
  });
  it("calls full fine-tunings in mixed precision autocast", () => {
    expect(bodyOf({ ...planned, method: "full", precision: "amp_bf16" }, "", NO_WISHES, data)).toMatchObject({ settings: { precision: "autocast" } });
  });
});

describe("what is wrong", () => {
  it("is nothing of a plan that the recipe can do", () => {
    expect(wrongOf(planned, "", NO_WISHES)).toEqual({});
    expect(wrongOf({ ...planned, model: "/models/llama" }, "", NO_WISHES)).toEqual({});
  });
  it("is said beside its field", () => {
    expect(wrongOf({ ...planned, model: "llama-3-8b" }, "", NO_WISHES)).toHaveProperty("hub");
    expect(wrongOf({ ...planned, method: "norm-tuning", precision: "amp_fp16", optimizer: "sgd" }, "", NO_WISHES)).toMatchObject({ method: expect.anything(), precision: expect.anything(), optimizer: expect.anything() });
    expect(wrongOf({ ...planned, method: "full" }, "", NO_WISHES).precision).toContain("amp_bf16");
    const wishes = { ...NO_WISHES, epochs: "0", held_out: "1", max_cost: "-1", max_duration: "long" };
    expect(Object.keys(wrongOf(planned, "", wishes)).sort()).toEqual(["epochs", "held_out", "max_cost", "max_duration"]);
    expect(wrongOf({ ...planned, steps: "10" }, "", { ...NO_WISHES, epochs: "2" }).epochs).toContain("steps");
  });
  it("is put to the field that the service speaks of", () => {
    expect(fieldAbout("settings.batch_size")).toBe("batch");
    expect(fieldAbout("data.sha256")).toBe("data");
    expect(fieldAbout("template.caps.max_cost_usd")).toBe("max_cost");
    expect([fieldAbout("template.labels"), fieldAbout(null)]).toEqual([null, null]);
  });
  it("knows names of the hub", () => {
    expect(["a/b", "/srv/model", "llama-3-8b", "a/b/c", "a b/c"].map(isOfHub)).toEqual([true, true, false, false, false]);
  });
});

describe("the command", () => {
  it("submits the same", () => {
    const wishes = { ...NO_WISHES, name: "my sums", deadline: "6h", max_cost: "$5", max_duration: "8h", epochs: "2" };
    expect(commandOf({ ...planned, rank: "8" }, "", wishes, "rows.jsonl")).toBe(
      `allpass finetune ${MODEL} rows.jsonl --batch 16 --seq 2048 --epochs 2 --rank 8 --name 'my sums' --deadline 6h --max-cost 5 --max-duration 8h`,
    );
  });
  it("quotes what a shell would run", () => {
    expect(commandOf({ ...planned, model: "llama-3-8b" }, "", NO_WISHES, "$(rm x).jsonl")).toContain("'$(rm x).jsonl'");
  });
});

it("counts four characters to a token", () => expect(tokensOf(data)).toBe(100));
