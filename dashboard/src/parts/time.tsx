import { signal } from "@preact/signals";

import { absolute, relative } from "../format";

/** The present, once a second, for all relative times together. It stands still while the page is not seen. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

/** A time relative to now, with the absolute one at hand. */
export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <>–</>;
  return <time dateTime={at} title={absolute(at)}>{relative(at, now.value)}</time>;
}
