import type { ComponentChildren } from "preact";

/** Says that there is nothing, and what to do about it. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p><strong>{title}</strong></p>
      {children}
    </div>
  );
}
