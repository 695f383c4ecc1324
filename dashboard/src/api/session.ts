/** Who is signed in. The key itself is sent once and kept nowhere: the session is a cookie that no script can read. */

import { signal } from "@preact/signals";

import { ApiError, del, get, onSignedOut, post, useCsrfToken } from "./client";
import type { Session } from "./types";

type State =
  | { kind: "unknown" }
  | { kind: "out"; why: string | null }
  | { kind: "in"; session: Session }
  | { kind: "failed"; error: Error };

export const session = signal<State>({ kind: "unknown" });

onSignedOut(() => {
  useCsrfToken(null);
  if (session.value.kind === "in") session.value = { kind: "out", why: "Your session has ended. Sign in again to go on." };
});

export async function readSession(): Promise<void> {
  try {
    accept(await get<Session>("v1/session"));
  } catch (error) {
    const known = error instanceof ApiError && error.status === 401;
    session.value = known ? { kind: "out", why: null } : { kind: "failed", error: error as Error };
  }
}

/** Raises ApiError for a key that is not accepted. */
export async function signIn(key: string): Promise<void> {
  accept(await post<Session>("v1/session", { api_key: key.trim() }, { idempotencyKey: undefined }));
}

/** Raises ApiError where the service was not reached: the session lives on then, and nobody is told otherwise. */
export async function signOut(): Promise<void> {
  try {
    await del("v1/session");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error; // 401: it had ended before
  }
  useCsrfToken(null);
  session.value = { kind: "out", why: null };
}

/** Whether the key has the scope: `admin` includes all others but `owner`. */
export function may(scope: string): boolean {
  const state = session.value;
  if (state.kind !== "in") return false;
  const { scopes } = state.session;
  return scopes.includes(scope) || (scope !== "owner" && scopes.includes("admin"));
}

function accept(found: Session): void {
  useCsrfToken(found.csrf_token);
  session.value = { kind: "in", session: found };
}
