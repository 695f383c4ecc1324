import "./status.css";

/** What the colour of a status means: it goes on, it waits, it went well, it went wrong. */
export const KINDS: Record<string, "going" | "wait" | "good" | "bad" | "over"> = {
  queued: "wait", starting: "going", running: "going", checkpointing: "going", waiting: "wait", paused: "wait",
  succeeded: "good", failed: "bad", cancelled: "over",
};

/** A status in its colour, with a mark that differs in shape, too. */
export function Status({ status, title }: { status: string; title?: string | null }) {
  return <span class={`status ${KINDS[status] ?? "over"}`} title={title ?? undefined}>{status}</span>;
}
