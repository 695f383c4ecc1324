import { describe, expect, it } from "vitest";

import { barOf, bestOf, layoutInWords, networkInWords, parted, siteInWords, size, switchesInWords } from "./options";
import { changed, commandOf, fieldsOf, inAddress, isWhole, requestOf, USUAL } from "./request";
import type { PlanOffer, PlanOption } from "./shapes";

const asked = { ...USUAL, model: "llama-3-8b" };

describe("the question", () => {
  it("is in the address, without what is as usual", () => {
    const address = inAddress({ ...asked, steps: " 3000 " });
    expect(Object.entries(address).filter(([, value]) => value)).toEqual([["model", "llama-3-8b"], ["steps", "3000"]]);
    expect(fieldsOf(new URLSearchParams("model=llama-3-8b&steps=3000"))).toEqual({ ...asked, steps: "3000" });
  });
  it("is asked with numbers as numbers", () => {
    const request = requestOf({ ...asked, rank: "8", deadline: "6h" }, "");
    expect(request.body).toMatchObject({ model: "llama-3-8b", batch: 16, sequence: 2048, rank: 8, soft_deadline: "6h" });
    expect(request.body).not.toHaveProperty("steps");
    expect(isWhole(request)).toBe(true);
  });
  it("is asked of so many machines, or of as few as it takes", () => {
    expect(requestOf({ ...asked, nodes: "4" }, "").body).toMatchObject({ nodes: 4 });
    expect(requestOf(asked, "").body).not.toHaveProperty("nodes");
    expect(requestOf({ ...asked, nodes: "-1" }, "").wrong).toHaveProperty("nodes");
    expect(commandOf({ ...asked, nodes: "4" }, "")).toContain("--nodes 4");
    expect(fieldsOf(new URLSearchParams("model=llama-3-8b&nodes=4")).nodes).toBe("4");
  });
  it("has no rank without adapters", () => {
    expect(requestOf({ ...asked, method: "full", rank: "8" }, "").body).not.toHaveProperty("rank");
  });
  it("is not asked while something is wrong or no model is named", () => {
    expect(requestOf({ ...asked, batch: "0" }, "").wrong).toHaveProperty("batch");
    expect(requestOf(asked, "[1]").wrong).toHaveProperty("config");
    expect(isWhole(requestOf(USUAL, ""))).toBe(false);
  });
  it("takes a config.json in place of a name", () => {
    const { body } = requestOf(asked, '{"hidden_size": 8}');
    expect(body.config).toEqual({ hidden_size: 8 });
    expect(body).not.toHaveProperty("model");
  });
  it("can be asked with what a plan proposes", () => {
    expect(changed(asked, ["method=qlora", "checkpointing=True"])).toEqual({ ...asked, method: "qlora", checkpointing: true });
    expect(changed(asked, ["quantisation=nf4"])).toBeNull();
  });
  it("has a command", () => {
    expect(commandOf({ ...asked, method: "qlora", deadline: "6h" }, "")).toBe("allpass plan --model llama-3-8b --method qlora --batch 16 --seq 2048 --deadline 6h");
    expect(commandOf(asked, "{}")).toBe("allpass plan --config config.json --batch 16 --seq 2048");
    expect(commandOf({ ...asked, model: "a; rm x" }, "")).toContain("--model 'a; rm x'");
  });
});

describe("the answer", () => {
  it("draws what is needed against what there is", () => {
    expect(barOf({ low: 20, expected: 40, high: 50 }, 80)).toEqual({ capacity: 100, expected: 50, low: 25, high: 62.5 });
    const over = barOf({ low: 90, expected: 300, high: 400 }, 100);
    expect(over.capacity).toBeCloseTo(62.5);
    expect(over.expected).toBe(100);
  });
  it("has the first offer of each tier, which is the best", () => {
    const offer = (tier: string, cost: number) => ({ tier, cost }) as PlanOffer;
    expect(bestOf([offer("serverless", 3), offer("serverless", 9)], "serverless")?.cost).toBe(3);
    expect(bestOf([], "serverless")).toBeNull();
  });
  it("says a layout", () => {
    const layout = { gpus: 2, replicas: 2, tensor_parallel: 1, sharding: "zero2", micro_batch: 8, accumulation: 1, checkpointing: true, precision: "bf16" };
    expect(layoutInWords(layout)).toBe("2 × 8 sequences × 1 micro-batch, zero2, bf16, activations recomputed");
  });
  it("parts what holds the job from what does not, each with its place", () => {
    const option = (verdict: string) => ({ verdict }) as PlanOption;
    const { hold, small } = parted([option("fits"), option("no"), option("tight")]);
    expect([hold.map(([, at]) => at), small.map(([, at]) => at)]).toEqual([[0, 2], [1]]);
  });
  it("says of several machines where they are and what they wait for", () => {
    expect(siteInWords({ tier: "own", provider: "joined", site: "lab" })).toBe("pool lab");
    expect(siteInWords({ tier: "conventional", provider: "lambda", site: "us-west-1" })).toBe("lambda us-west-1");
    const network = { bits_per_s: 9_876_543_210, source: "measured" as const, exchange_ms: 12, is_slow: false };
    expect(networkInWords({ network })).toBe("9.88 Gbit/s, measured there");
    expect(switchesInWords([{ rack: "r1", switch: "leaf-1", machines: 4 }, { rack: "", switch: "", machines: 2 }])).toBe("4 under leaf-1 in r1, 2 under one that nobody says");
    expect(switchesInWords([])).toBe("");
    const many = Array.from({ length: 10 }, (_, at) => ({ rack: "", switch: `s${at}`, machines: 2 }));
    expect(switchesInWords(many)).toMatch(/2 under s7, 4 under 2 others$/);
  });
  it("says how large a model is", () => {
    expect([size(8.03e9), size(70e9), size(135e6)]).toEqual(["8.0 B", "70 B", "135 M"]);
  });
});
