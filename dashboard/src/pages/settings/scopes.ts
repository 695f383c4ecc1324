import { session } from "../../api/session";

/** Scope `owner` itself: `admin` does not include it. */
export function isOwner(): boolean {
  const state = session.value;
  return state.kind === "in" && state.session.scopes.includes("owner");
}

export function isOwnKey(id: string): boolean {
  const state = session.value;
  return state.kind === "in" && state.session.key_id === id;
}
