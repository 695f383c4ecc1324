import type { ComponentChildren } from "preact";

/** What one opens to see. */
export function Folded({ title, bad = false, children }: { title: ComponentChildren; bad?: boolean; children: ComponentChildren }) {
  return <details><summary class={bad ? "bad" : ""}>{title}</summary>{children}</details>;
}
