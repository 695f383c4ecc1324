import { describe, expect, it } from "vitest";

import { ApiError } from "../../api/client";
import { fieldOf } from "./form-dialog";
import { shareOf } from "./meter";
import { actionInWords, amountOf, answered, keyCommand, keyState, limitChange, removeCommand, secretNameProblem, secretValue, setCommand, whatCounts, withScope } from "./words";

describe("keys", () => {
  const now = Date.UTC(2026, 10, 21);
  it("are usable until they expire or are revoked", () => {
    expect(keyState({ expires_at: null, revoked_at: null }, now)).toBe("usable");
    expect(keyState({ expires_at: "2026-11-20T00:00:00Z", revoked_at: null }, now)).toBe("expired");
    expect(keyState({ expires_at: "2026-11-20T00:00:00Z", revoked_at: "2026-11-19T00:00:00Z" }, now)).toBe("revoked");
  });
  it("have owner only with admin", () => {
    expect(withScope(["read"], "owner", true)).toEqual(["read", "admin", "owner"]);
    expect(withScope(["read", "admin", "owner"], "admin", false)).toEqual(["read"]);
  });
  it("are created by a command that a shell takes as it is", () => {
    expect(keyCommand("ci", ["read", "submit"], 90)).toBe("allpass key create ci --scope read --scope submit --expires 90d");
    expect(keyCommand("$(rm -rf ~)", ["read"], null)).toBe("allpass key create '$(rm -rf ~)' --scope read");
    expect(keyCommand(" ", ["read"], null)).toBe("allpass key create NAME --scope read");
  });
});

describe("secrets", () => {
  it("have names of the environment", () => {
    expect(secretNameProblem("HF_TOKEN")).toBeNull();
    expect(secretNameProblem("")).toBeNull();
    expect(secretNameProblem("hf token")).not.toBeNull();
    expect(secretNameProblem("1_A")).not.toBeNull();
  });
  it("lose one newline at the end alone", () => {
    expect(secretValue("a\nb\n\n")).toBe("a\nb\n");
    expect(secretValue("a\r\n")).toBe("a");
  });
});

describe("budgets", () => {
  const fields = { scope: "project", key_id: null, provider: null, period: "day" } as const;
  it("are set and removed by the same words", () => {
    expect(setCommand({ ...fields, provider: "vast" }, "20")).toBe("allpass budget set --period day --provider vast --amount 20");
    expect(removeCommand({ ...fields, scope: "installation", period: "month" })).toBe("allpass budget remove --period month --installation");
    expect(removeCommand({ ...fields, key_id: "key_1" })).toBe("allpass budget remove --period day --key key_1");
  });
  it("take amounts of 0 and more", () => {
    expect([amountOf("0"), amountOf("$12.50"), amountOf("1,000"), amountOf("-1"), amountOf("x"), amountOf("2000000")]).toEqual([0, 12.5, 1000, null, null, null]);
  });
  it("say what counts", () => {
    expect(whatCounts({ key_id: null, provider: null }, (id) => id)).toBe("all that is spent");
    expect(whatCounts({ key_id: "k", provider: "vast" }, () => "ci")).toBe("jobs of key ci, at vast");
  });
  it("fill a bar and never more", () => {
    expect([shareOf(1, 4), shareOf(9, 4), shareOf(0, 0), shareOf(-1, 4)]).toEqual([0.25, 1, 1, 0]);
  });
});

describe("limits", () => {
  const before = { machines: "10", perDay: "200" };
  it("send only what differs; an empty field takes the limit away", () => {
    expect(limitChange(before, before)).toEqual({ body: {}, wrong: [], command: "allpass limits set" });
    expect(limitChange(before, { machines: "", perDay: "$250" })).toEqual({ body: { machines: null, per_day_usd: 250 }, wrong: [], command: "allpass limits set --machines none --per-day 250" });
    expect(limitChange(before, { machines: "0", perDay: "200" }).body).toEqual({ machines: 0 });
  });
  it("name what is not understood", () => {
    expect(limitChange(before, { machines: "1.5", perDay: "0" }).wrong).toEqual(["machines", "perDay"]);
  });
});

describe("answers", () => {
  it("are told in words, unknown ones as they are", () => {
    expect([actionInWords("PUT /v1/budgets"), actionInWords("PUT /v9/x")]).toEqual(["set a budget", "PUT /v9/x"]);
    expect([answered(201).text, answered(422).text, answered(503).text]).toEqual(["done", "refused", "failed"]);
  });
  it("stand at the field that they are about", () => {
    const about = (param: string | null) => new ApiError(422, { code: "invalid_input", message: "", param, request_id: "", retryable: false });
    expect(fieldOf(about("scopes.0"), ["name", "scopes"])).toBe("scopes");
    expect(fieldOf(about("scope"), ["name", "scopes"])).toBeNull();
    expect(fieldOf(about(null), ["name"])).toBeNull();
    expect(fieldOf(new Error("x"), ["name"])).toBeNull();
  });
});
