import "../../parts/status.css";

/** What the states of machines and providers mean, as the colours of jobs do. */
const KINDS: Record<string, "going" | "wait" | "good" | "bad" | "over"> = {
  requested: "wait", booting: "going", ready: "good", unreachable: "bad", unknown: "wait", draining: "wait", terminating: "over",
  terminated: "over", failed: "bad", ok: "good", failing: "bad", paused: "wait", refused: "bad", wanted: "wait", building: "going",
};

/** A state in its colour, with a mark that differs in shape, too. */
export function Mark({ word }: { word: string }) {
  return <span class={`status ${KINDS[word] ?? "over"}`}>{word}</span>;
}
