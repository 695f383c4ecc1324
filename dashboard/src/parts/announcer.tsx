/** Says to screen readers, and shows for a while, what an action has done. */

import { signal } from "@preact/signals";

const said = signal("");
let timer: ReturnType<typeof setTimeout> | undefined;

export function announce(text: string): void {
  said.value = text;
  clearTimeout(timer);
  timer = setTimeout(() => (said.value = ""), 6_000);
}

export function Announcer() {
  return <div class="announcer" role="status" aria-live="polite">{said.value && <span>{said.value}</span>}</div>;
}
