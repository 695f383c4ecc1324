import { beforeAll, describe, expect, it, vi } from "vitest";

let route: typeof import("./route");

beforeAll(async () => {
  vi.stubGlobal("location", { hash: "" }); // it asks for the present address as it is loaded
  vi.stubGlobal("addEventListener", () => undefined);
  route = await import("./route");
});

describe("parse", () => {
  it("takes an address apart", () => {
    const found = route.parse("#/jobs/job_01AB/log?q=a%20b");
    expect([found.name, found.id, found.tab, found.query.get("q")]).toEqual(["jobs", "job_01AB", "log", "a b"]);
  });
  it("begins with the jobs", () => {
    expect(route.parse("")).toMatchObject({ name: "jobs", id: null, tab: null });
    expect(route.parse("#/")).toMatchObject({ name: "jobs", id: null });
  });
  it("takes what is no address as it is", () => {
    expect(route.parse("#/jobs/%E0%A4%A").id).toBe("%E0%A4%A");
  });
});

describe("href", () => {
  it("is what parse reads", () => {
    const made = route.href("jobs", "a/b?c", "log", { q: "x&y#z", empty: "" });
    const found = route.parse(made);
    expect([found.id, found.tab, found.query.get("q"), found.query.has("empty")]).toEqual(["a/b?c", "log", "x&y#z", false]);
  });
});
