import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { may, session, signOut } from "./session";
import type { Session } from "./types";

const signedIn = (scopes: string[]): Session => ({
  project_id: "proj_1", project_name: "default", key_id: "key_1", key_name: "first", scopes, csrf_token: "t", expires_at: "2026-01-01T00:00:00Z",
});
const answers = (status: number) =>
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(status === 204 ? null : JSON.stringify({ error: { code: "x", message: "no", param: null } }), { status })));

beforeEach(() => (session.value = { kind: "in", session: signedIn(["admin"]) }));
afterEach(() => vi.unstubAllGlobals());

describe("signing out", () => {
  it.each([204, 401])("is done when the session is gone on the server (%i)", async (status) => {
    answers(status);
    await signOut();
    expect(session.value.kind).toBe("out");
  });

  it("is not claimed while the session lives on there", async () => {
    answers(503);
    await expect(signOut()).rejects.toThrow("no");
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("offline")));
    await expect(signOut()).rejects.toThrow("cannot be reached");
    expect(session.value.kind).toBe("in");
  });
});

describe("what a key may do", () => {
  it.each([
    [["admin"], "submit", true], [["admin"], "owner", false], [["owner"], "owner", true], [["read"], "submit", false], [["read"], "read", true],
  ])("%j may %s: %s", (scopes, scope, expected) => {
    session.value = { kind: "in", session: signedIn(scopes) };
    expect(may(scope)).toBe(expected);
  });
});
