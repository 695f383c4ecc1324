import type { ComponentChildren } from "preact";

/** What one opens to see. */
export function Folded({ title, kind, children }: { title: ComponentChildren; kind?: "bad" | "wait"; children: ComponentChildren }) {
  return <details><summary class={kind}>{title}</summary>{children}</details>;
}
