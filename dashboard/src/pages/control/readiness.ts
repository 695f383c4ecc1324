/** Whether the parts of the service do their work. Its answer is worth reading with a status of 503, too. */

import { ApiError, address } from "../../api/client";

export interface Health {
  status: "ok" | "degraded";
  parts: Record<string, string>;
  version: string;
  degraded: { part: string; since: string; failures: number; what: string }[];
}

export async function readHealth(signal: AbortSignal): Promise<Health> {
  const answer = await fetch(address("readyz"), { signal, headers: { accept: "application/json" } }).catch((error: unknown) => {
    if (signal.aborted) throw error;
    return null;
  });
  const found: unknown = await answer?.json().catch(() => null);
  if (isHealth(found)) return found;
  const message = answer ? `The service answered ${answer.status} when it was asked how it is.` : "The service cannot be reached.";
  throw new ApiError(answer?.status ?? 0, { code: "unreachable", message, param: null, request_id: "", retryable: true });
}

export function isHealth(found: unknown): found is Health {
  return typeof found === "object" && found !== null && "parts" in found && "degraded" in found;
}
