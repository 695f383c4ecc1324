import { describe, expect, it } from "vitest";

import { classWords, poolWords, standbyWords, windowWords, type PoolFacts, type Standby } from "./class-words";

const pool = (changes: Partial<PoolFacts>): PoolFacts => ({ name: "lab", spot_share: 1, grace_s: null, ...changes });
const standby = (changes: Partial<Standby>): Standby => ({
  state: "lent", gpus: 4, used_gpus: 3, until: "2026-11-21T07:00:00Z", why: null, paid: 400_000, rebate: 425_000, price_per_hour: 825_000, ...changes,
});

describe("the class of a job", () => {
  it("is said in words", () => expect([classWords("spot").slice(0, 5), classWords("guaranteed").slice(0, 11)]).toEqual(["spot:", "guaranteed:"]));
  it("tells the share and the grace of pools that have their own", () =>
    expect(poolWords("spot", [pool({}), pool({ name: "cheap", spot_share: 0.3 }), pool({ name: "slow", grace_s: 300 }), pool({ name: "both", spot_share: 0, grace_s: 10 })])).toEqual([
      "in pool cheap it pays 30 % of the price", "in pool slow it has 5 min to save", "in pool both it pays 0 % of the price and has 10 s to save",
    ]));
  it("tells nothing of pools to a guaranteed job", () => expect(poolWords("guaranteed", [pool({ spot_share: 0.3 })])).toEqual([]));
  it("does not list a hundred pools", () => {
    const words = poolWords("spot", Array.from({ length: 100 }, (_, at) => pool({ name: `p${at}`, spot_share: 0.5 })));
    expect([words.length, words.at(-1)]).toEqual([6, "and 95 more pools"]);
  });
});

describe("a job that stands by", () => {
  it("says until when, who has its GPUs, and what it costs", () => {
    const words = standbyWords(standby({}))!;
    expect(words).toContain("others have 3 of its 4 GPUs; $0.825/h is paid meanwhile, $0.400 so far, and $0.425 is not");
    expect(words.startsWith("until ")).toBe(true);
  });
  it("says that it is called back, or leaves", () => {
    expect(standbyWords(standby({ state: "called_back", why: "its window is over" }))).toContain("is called back: its window is over; others have 3");
    expect(standbyWords(standby({ state: "leaving" }))).toContain("its code saves");
    expect(standbyWords(standby({ state: "ending", why: "it is held" }))).toBe("no more: it is held");
  });
  it("says nothing once it is over, or where there is none", () => expect([standbyWords(undefined), standbyWords(standby({ state: "over" }))]).toEqual([null, null]));
  it("says which windows come again", () =>
    expect(windowWords({ id: "stbw_a", days: ["mon", "tue"], begins: "20:00", ends: "08:00", zone: "Europe/Rome", next_at: null, ended_at: null })).toBe("mon, tue from 20:00 to 08:00, Europe/Rome"));
});
